"""Pairs of trainings, without and with convolutions before both blocks: what these are worth after millions of tokens.

    python benchmarks/real/convolutions.py --work W --out benchmarks/real/convolutions.csv

Both of a pair read the same tokens in the same order, so a busy machine changes only the seconds. Rows that the table
holds are not made again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from expert import drawn
from single import epochs, opened, trained

import resumable_rows
from chipwise.design.run.spec import load_run

COLUMNS = (
    "width", "layers", "vocab_size", "ffn_width", "conv", "seed", "tokens", "epochs", "validation_bits_per_byte",
    "test_bits_per_byte", "charged_cpu_s",
)  # fmt: skip
STEP_TOKENS = 2048
PAIRS = (
    *((96, 1, 4096, 256, 1000), (96, 4, 4096, 256, 600)),
    *((96, 2, 4096, 256, 2000), (96, 2, 4096, 256, 4000), (96, 4, 4096, 256, 2000), (128, 5, 8192, 384, 4000)),
)
"""Width, layers, vocabulary, width of the feed-forward, and steps of ``STEP_TOKENS``."""


def main() -> None:
    """Trains what the table lacks."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--work", type=Path, default=Path("runs/convolutions"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_run(options.spec)
    task = opened(spec, options.work / "corpus")
    rows = resumable_rows.read(options.out)
    for width, depth, vocab, ffn, steps in PAIRS:
        for conv in ("none", "both"):
            key = {"width": f"{width}", "layers": f"{depth}", "conv": conv, "tokens": f"{steps * STEP_TOKENS}"}
            if any(key.items() <= row.items() for row in rows):
                continue
            choices = drawn(width, depth, (4, 4), ffn, vocab, conv, tied=True)
            place = options.work / f"{width}-{depth}-{steps}-{conv}"
            found = trained(choices, spec, task, place, seed=0, steps=steps)
            row = {
                "width": width, "layers": depth, "vocab_size": vocab, "ffn_width": ffn, "conv": conv, "seed": 0,
                "tokens": found.result.tokens, "epochs": f"{epochs(found):.2f}",
                "validation_bits_per_byte": f"{found.result.loss:.4f}",
                "test_bits_per_byte": f"{found.test_loss:.4f}", "charged_cpu_s": f"{found.result.cpu_s:.1f}",
            }  # fmt: skip
            resumable_rows.add(rows, row, options.out, COLUMNS)


if __name__ == "__main__":
    main()

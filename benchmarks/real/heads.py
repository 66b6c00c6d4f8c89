"""Trainings that differ only in their heads: what width of attention and key heads are worth after millions of tokens.

    python benchmarks/real/heads.py --work W --out benchmarks/real/heads.csv

All read the same tokens in the same order, so a busy machine changes only the seconds. Rows that the table holds are
not made again. Width 128, five layers, SwiGLU of 384, vocabulary 8,192, tied, on the text of ``examples/clinic.yaml``.
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
    "heads", "kv_heads", "head_size", "seed", "steps", "tokens", "epochs", "parameters", "validation_bits_per_byte",
    "test_bits_per_byte", "charged_cpu_s",
)  # fmt: skip
HEADS = ((4, 4, 32), (4, 1, 32), (2, 2, 32), (2, 1, 32))  # of queries, of keys, and the size of each
STEPS = 3900


def main() -> None:
    """Trains what the table lacks."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--work", type=Path, default=Path("runs/heads"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec, seed = load_run(options.spec), options.seed
    task = opened(spec, options.work / "corpus")
    for heads, kv_heads, size in HEADS:
        own = {"heads": str(heads), "kv_heads": str(kv_heads), "head_size": str(size), "seed": str(seed)}
        rows = resumable_rows.read(options.out)
        if any(own.items() <= row.items() for row in rows):
            continue
        choices = drawn(128, 5, (heads, kv_heads), 384, 8192, "none", tied=True, head=size)
        place = options.work / f"h{heads}-{kv_heads}-{size}-{seed}"
        found = trained(choices, spec, task, place, seed=seed, steps=STEPS)
        row = own | {
            "steps": found.result.steps, "tokens": found.result.tokens, "epochs": f"{epochs(found):.2f}",
            "parameters": found.parameters, "validation_bits_per_byte": f"{found.result.loss:.5f}",
            "test_bits_per_byte": f"{found.test_loss:.5f}", "charged_cpu_s": f"{found.result.cpu_s:.1f}",
        }  # fmt: skip
        resumable_rows.add(rows, row, options.out, COLUMNS)


if __name__ == "__main__":
    main()

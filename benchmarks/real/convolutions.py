"""Pairs of trainings, without and with convolutions before both blocks: what these are worth after millions of tokens.

    python benchmarks/real/convolutions.py --work W --out benchmarks/real/convolutions.csv

Both of a pair read the same tokens in the same order, so a busy machine changes only the seconds. Rows that the table
holds are not made again.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from expert import drawn

import resumable_rows
from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import load_model
from chipwise.training.loop.trainer import train

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
    folder = options.work / "corpus"
    task = spec.task_settings.open(spec.data, base=Path(spec.folder), folder=folder, space=spec.space)
    task.prepare()
    rows = resumable_rows.read(options.out)
    for width, depth, vocab, ffn, steps in PAIRS:
        for conv in ("none", "both"):
            key = {"width": f"{width}", "layers": f"{depth}", "conv": conv, "tokens": f"{steps * STEP_TOKENS}"}
            if any(key.items() <= row.items() for row in rows):
                continue
            choices = drawn(width, depth, (4, 4), ffn, vocab, conv, tied=True)
            arch = design_of(choices, spec=replace(spec.space, head_size=(32,)), name=conv).arch
            data = task.data(arch).load()
            place, recipe = options.work / f"{width}-{depth}-{steps}-{conv}", Recipe(**task.recipe)
            found = train(arch, data, steps=steps, seed=0, folder=place, recipe=recipe)
            test = data.judge(load_model(arch, found.weights), split="test").loss
            row = {
                "width": width, "layers": depth, "vocab_size": vocab, "ffn_width": ffn, "conv": conv, "seed": 0,
                "tokens": found.tokens, "epochs": f"{found.tokens / (len(data.train) - 1):.2f}",
                "validation_bits_per_byte": f"{found.loss:.4f}", "test_bits_per_byte": f"{test:.4f}",
                "charged_cpu_s": f"{found.cpu_s:.1f}",
            }  # fmt: skip
            resumable_rows.add(rows, row, options.out, COLUMNS)


if __name__ == "__main__":
    main()

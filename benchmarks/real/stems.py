"""Classifiers that differ in patches, stem and pooling, trained over many epochs.

    python benchmarks/real/stems.py images --work W --out benchmarks/real/stems.csv    # or words; equal CPU time
    python benchmarks/real/stems.py pairs --seed 1 --work W --out benchmarks/real/stems.csv
    python benchmarks/real/stems.py report --out benchmarks/real/stems.csv

``images`` and ``words`` give all designs of a task the same CPU time. ``pairs`` trains image classifiers with patches
of 14 pixels, without and with a convolution before the patches, on the same images in the same order, so a busy machine
changes only the seconds; ``report`` prints what the convolution changes. The designs of a task share width, layers and
heads, and the data of ``examples/vision.yaml`` or ``examples/speech.yaml``. Losses are error rates. Rows that the table
holds are not made again.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from single import opened, trained

import resumable_rows
from chipwise.design.run.spec import load_run

COLUMNS = (
    "task", "patch", "stem", "pooling", "width", "layers", "seed", "budget", "tokens", "parameters",
    "validation_error", "test_error", "charged_cpu_s",
)  # fmt: skip
FILES = {"images": "vision.yaml", "pairs": "vision.yaml", "words": "speech.yaml"}
STEPS = 8000  # of 128 images in a pair: 19 passes over the 55,200 training images
SHAPES = {"images": (96, 2, 6, 384), "words": (96, 3, 4, 256)}  # width, layers, heads of 16, feed-forward
DESIGNS = {
    "images": ((14, "patches", "mean"), (14, "conv16", "mean"), (7, "patches", "mean"), (14, "conv16", "first")),
    "pairs": ((14, "patches", "mean"), (14, "conv16", "mean")),
    "words": ((20, "patches", "first"), (20, "conv32", "first")),
}


def drawn(shape: tuple[int, int, int, int], patch: int, stem: str, pooling: str) -> dict[str, Any]:
    """Choices of a classifier with equal layers."""
    width, depth, heads, ffn = shape
    layer = {"heads": heads, "kv_heads": heads, "square": "none", "ffn": "gelu", "ffn_width": ffn}
    return {
        "d_model": width, "depth": depth, "head_size": 16, "tie_embeddings": False, "weights": "fp32",
        "sharing": "none", "patch": patch, "stem": stem, "pooling": pooling, "layers": [layer] * depth,
    }  # fmt: skip


def report(rows: Sequence[Mapping[str, str]]) -> None:
    """Prints the mean change of the ln error rate of validation and test images over the pairs, and its error."""
    losses = {(row["stem"], row["seed"]): row for row in rows if row["budget"].endswith("steps")}
    seeds = sorted(seed for stem, seed in losses if stem == "patches" and ("conv16", seed) in losses)
    for column in ("validation_error", "test_error"):
        changes = [
            math.log(float(losses["conv16", seed][column]) / float(losses["patches", seed][column])) for seed in seeds
        ]
        error = statistics.stdev(changes) / math.sqrt(len(changes))
        print(f"{column}: {statistics.mean(changes):+.3f} ± {error:.3f} ({len(changes)} pairs)")


def main() -> None:
    """Trains what the table lacks, or reports."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*sorted(FILES), "report"])
    parser.add_argument("--cpu-s", type=float, default=200)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the designs to train, from 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/stems"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.task == "report":
        report(resumable_rows.read(options.out))
        return
    torch.set_num_threads(1)
    spec, name = load_run(Path("examples") / FILES[options.task]), "words" if options.task == "words" else "images"
    shape, steps = SHAPES[name], STEPS if options.task == "pairs" else None
    seconds = None if steps else options.cpu_s
    task = opened(spec, options.work / f"{name}-corpus")
    designs = DESIGNS[options.task]
    for patch, stem, pooling in designs if options.only is None else [designs[number] for number in options.only]:
        own = {"task": name, "patch": str(patch), "stem": stem, "pooling": pooling, "seed": str(options.seed)}
        own["budget"] = f"{seconds:g} CPU-s" if seconds else f"{steps} steps"
        rows = resumable_rows.read(options.out)
        if any(own.items() <= row.items() for row in rows):
            continue
        choices = drawn(shape, patch, stem, pooling) | {"vocab_size": spec.space.vocab_size[0]}
        place = options.work / f"{name}-{patch}-{stem}-{pooling}-{options.seed}-{steps or seconds}"
        found = trained(choices, spec, task, place, seed=options.seed, steps=steps, cpu_budget_s=seconds)
        row = own | {
            "width": shape[0], "layers": shape[1], "tokens": found.result.tokens, "parameters": found.parameters,
            "validation_error": f"{found.result.loss:.5f}", "test_error": f"{found.test_loss:.5f}",
            "charged_cpu_s": f"{found.result.cpu_s:.1f}",
        }  # fmt: skip
        resumable_rows.add(rows, row, options.out, COLUMNS)


if __name__ == "__main__":
    main()

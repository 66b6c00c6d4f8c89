"""Classifiers that differ in patches, stem, pooling or size, trained over many epochs.

    python benchmarks/real/stems.py words --work W --out benchmarks/real/stems.csv    # or another group: equal CPU time
    python benchmarks/real/stems.py pairs --seed 1 --work W --out benchmarks/real/stems.csv
    python benchmarks/real/stems.py report --out benchmarks/real/stems.csv

``images`` and ``words`` differ in patches, stem and pooling; ``narrow`` (images), ``sizes`` (spoken words) and
``slices`` (of their clips) train smaller models. All these designs get the same CPU time. ``pairs`` trains image
classifiers with patches of 14 pixels, without and with a convolution before the patches, on the same images in the same
order, so a busy machine changes only the seconds; ``report`` prints what the convolution changes. The data are those of
``examples/vision.yaml`` or ``examples/speech.yaml``. Losses are error rates. Rows that the table holds are not made
again.
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
FILES = dict.fromkeys(("images", "narrow", "pairs"), "vision.yaml") | dict.fromkeys(
    ("words", "sizes", "slices"), "speech.yaml"
)
STEPS = 8000  # of 128 images in a pair: 19 passes over the 55,200 training images
IMAGES, WORDS = (96, 2, 6, 384), (96, 3, 4, 256)  # width, layers, heads of 16, feed-forward
SMALL = (64, 2, 4, 256)
DESIGNS = {
    "images": (
        *((IMAGES, 14, "patches", "mean"), (IMAGES, 14, "conv16", "mean")),
        *((IMAGES, 7, "patches", "mean"), (IMAGES, 14, "conv16", "first")),
    ),
    "narrow": (
        *((SMALL, 14, "conv32", "first"), ((64, 1, 4, 256), 14, "conv32", "first"), (SMALL, 14, "conv8", "first")),
        *(((48, 2, 3, 256), 14, "conv32", "first"), ((32, 2, 2, 256), 14, "conv32", "first")),
    ),
    "pairs": ((IMAGES, 14, "patches", "mean"), (IMAGES, 14, "conv16", "mean")),
    "words": ((WORDS, 20, "patches", "first"), (WORDS, 20, "conv32", "first")),
    "sizes": tuple(
        (shape, 20, stem, "first")
        for stem in ("patches", "conv32")
        for shape in (WORDS, (64, 3, 4, 256), SMALL, (48, 2, 3, 128), (32, 2, 2, 128), (32, 1, 2, 128))
    ),
    "slices": tuple(
        (SMALL, patch, stem, "first")
        for patch, stem in ((10, "patches"), (10, "conv32"), (4, "patches"), (4, "conv32"))
    ),
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
    spec = load_run(Path("examples") / FILES[options.task])
    name, steps = "images" if spec.task == "vision" else "words", STEPS if options.task == "pairs" else None
    seconds = None if steps else options.cpu_s
    task = opened(spec, options.work / f"{name}-corpus")
    designs = DESIGNS[options.task]
    wanted = range(len(designs)) if options.only is None else options.only
    for shape, patch, stem, pooling in [designs[number] for number in wanted]:
        own = {"task": name, "patch": str(patch), "stem": stem, "pooling": pooling, "seed": str(options.seed)}
        own |= {"width": str(shape[0]), "layers": str(shape[1])}
        own["budget"] = f"{seconds:g} CPU-s" if seconds else f"{steps} steps"
        rows = resumable_rows.read(options.out)
        if any(own.items() <= row.items() for row in rows):
            continue
        choices = drawn(shape, patch, stem, pooling) | {"vocab_size": spec.space.vocab_size[0]}
        place = options.work / "-".join(map(str, (name, *shape, patch, stem, pooling, options.seed, steps or seconds)))
        found = trained(choices, spec, task, place, seed=options.seed, steps=steps, cpu_budget_s=seconds)
        row = own | {
            "tokens": found.result.tokens, "parameters": found.parameters,
            "validation_error": f"{found.result.loss:.5f}", "test_error": f"{found.test_loss:.5f}",
            "charged_cpu_s": f"{found.result.cpu_s:.1f}",
        }  # fmt: skip
        resumable_rows.add(rows, row, options.out, COLUMNS)


if __name__ == "__main__":
    main()

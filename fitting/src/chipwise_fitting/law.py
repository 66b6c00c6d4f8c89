"""The law of loss in size, shape and text (``chipwise.training.laws.laws``) fitted to published trainings.

    python -m chipwise_fitting.law --quality FOLDER

FOLDER holds tables (``.csv``, ``.csv.gz``) of trainings of many shapes by one lab: width, depth, parameters, tokens,
loss_nats. Neighbouring checkpoints are averaged and about fourteen of each shape kept, evenly over the logarithm of
their tokens: a loss is that of a few batches, and two hundred checkpoints of one training hold no more than fourteen.

One lab's figures say how loss changes, and little about its level on another text. The level that ships is midway
between this lab's and that of Besiroglu et al. 2024, and as unsure as two labs leave a third.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.files import write_json
from chipwise.errors import InputError
from chipwise.training.laws.law_fit import LawTrainings, fitted, trainings_of
from chipwise.training.laws.laws import BESIROGLU, CONSTANTS, DATA, Law, law_fields

EARLIEST_TOKENS = 8e9  # before, the learning rate was still being raised
CHECKPOINTS, NEIGHBOURS = 14, 0.06
SOURCE = "Gemstones, arXiv:2502.06857"

_PRIOR = {  # middle and standard deviation before any training
    "level": (0.0, 1e-6),  # the lab's own
    "ln_floor": (0.3, 0.5),
    "ln_size": (0.2, 1.0),
    "size_exponent": (0.2, 0.15),
    "ln_text": (-2.0, 1.0),
    "text_exponent": (0.4, 0.2),
    "text_growth": (0.0, 0.2),
    "ln_depth": (1.0, 1.5),  # 1 + 2.7 / layers
    "ln_width": (6.0, 1.5),  # 1 + 400 / width
    "ffn": (0.05, 0.05),  # four times away from 10 costs about half a per cent of loss: Kaplan et al., figure 5
    "kv": (0.026, 0.026),  # one of eight key-value heads, parameters equal: 0.3 % of loss (Shazeer 2019, table 3)
    "attention": (0.05, 0.05),  # an eighth of the width, parameters equal: 1.2 % of loss (the same table)
    "ln_bits": (math.log(2.67), 0.3),  # Kumar et al. 2024, fitted to trainings in 3 to 12 bits
    "between": (0.5, 0.3),  # the ends lie within nine of ten
}


def prior() -> Law:
    """What is believed before any training."""
    middle, spread = (np.array([_PRIOR[name][i] for name in CONSTANTS]) for i in (0, 1))
    return Law(
        constants=middle, covariance=np.diag(spread**2), scatter=0.003, noise=0.002,
        layer_parameters=(1.0, 1e13), tokens=(1.0, 1e16), source="nothing",
    )  # fmt: skip


def read(folder: Path) -> LawTrainings:
    """All trainings of the tables in ``folder``.

    Raises:
        InputError: There are none.
    """
    rows: list[dict[str, str]] = []
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows.extend(row for row in csv.DictReader(io.StringIO(data.decode(), newline="")) if "loss_nats" in row)
    if not rows:
        raise InputError(f"{folder}: no table with a column loss_nats")
    return trainings_of(rows, file=folder / "table")


def shape_numbers(trainings: LawTrainings) -> Float64Array:
    """A number for each training's shape, (n,): equal where width, depth and parameters are."""
    _, numbers = np.unique(trainings.shapes.columns().round(6), axis=1, return_inverse=True)
    return np.asarray(numbers)


def thinned(trainings: LawTrainings) -> LawTrainings:
    """About ``CHECKPOINTS`` of each shape, each the local trend of its neighbours; the last is always kept."""
    numbers, tokens = shape_numbers(trainings), trainings.tokens
    smooth, chosen = trainings.nats_per_token.copy(), np.zeros(len(trainings), bool)
    for number in np.unique(numbers):
        mine = np.flatnonzero((numbers == number) & (tokens >= min(EARLIEST_TOKENS, tokens[numbers == number].max())))
        mine = mine[np.argsort(tokens[mine])]
        wanted = np.geomspace(tokens[mine[0]], tokens[mine[-1]], CHECKPOINTS)
        near = np.abs(np.log(tokens[mine])[None] - np.log(wanted)[:, None]).argmin(axis=1)
        for i in mine[np.unique(near)]:
            chosen[i] = True
            x = np.log(tokens[mine] / tokens[i])
            close = np.abs(x) < NEIGHBOURS
            y = np.log(trainings.nats_per_token[mine[close]])
            smooth[i] = math.exp(np.polyfit(x[close], y, 1)[1] if close.sum() > 3 else y.mean())
    return replace(trainings, nats_per_token=smooth).where(chosen)


def fit_law(trainings: LawTrainings) -> Law:
    """The lab's own law, of ``thinned`` trainings."""
    return fitted(prior(), trainings, source=SOURCE)


def for_any_text(law: Law, trainings: LawTrainings) -> Law:
    """The law with the level that two labs leave a third: midway, half as unsure again as the two are apart."""
    all_parameters = trainings.shapes.columns()[1] + 2 * 50_304 * trainings.shapes.columns()[2]
    apart = float(np.log(BESIROGLU.nats_per_token(all_parameters, trainings.tokens) / trainings.nats_per_token).mean())
    spread = abs(apart) / math.sqrt(2) * math.sqrt(1.5)
    constants, covariance = law.constants.copy(), law.covariance.copy()
    constants[0] += apart / 2
    covariance[0, :] = covariance[:, 0] = 0.0
    covariance[0, 0] = spread**2
    return replace(law, constants=constants, covariance=covariance)


def fit(folder: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law to the tables of ``folder`` and writes ``out``; returns a report."""
    trainings = thinned(read(folder))
    law = fit_law(trainings)
    progress(f"{len(trainings)} checkpoints of {len(np.unique(shape_numbers(trainings)))} shapes")
    shipped = for_any_text(law, trainings)
    write_json(out, law_fields(shipped))
    spread = np.sqrt(np.diag(shipped.covariance))
    lines = [f"{n} {v:.4f} ({s:.4f})" for n, v, s in zip(CONSTANTS, shipped.constants, spread, strict=True)]
    return "\n".join([*lines, f"scatter {law.scatter}, noise {law.noise}"])


def main() -> None:
    """Fits and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    print(fit(options.quality, options.out, progress=print))


if __name__ == "__main__":
    main()

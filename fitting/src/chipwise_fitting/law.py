"""Fits how loss depends on size, shape and text (``chipwise.training.laws.laws``) to published training runs.

    python -m chipwise_fitting.law --quality FOLDER

FOLDER holds tables (``.csv``, ``.csv.gz``) of training runs of many shapes by one lab: width, depth, parameters,
tokens, loss_nats. Neighbouring checkpoints are averaged, and about fourteen of each shape are kept, evenly over the
logarithm of their tokens: a checkpoint's loss comes from a few batches, and two hundred checkpoints of one training run
hold no more information than fourteen.

One lab's figures say how the loss changes, but little about its level on another text. The level that chipwise uses is
midway between this lab's and that of Besiroglu et al. 2024, and as uncertain as a third lab's level, given these two.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.files import write_json
from chipwise.core.statistics import Z90
from chipwise.errors import InputError
from chipwise.training.laws.law_fit import Errors, LawTrainings, trainings_of, updated
from chipwise.training.laws.laws import BESIROGLU, CONSTANTS, DATA, Law, law_fields

EARLIEST_TOKENS = 8e9  # at fewer tokens the learning rate was still being raised
CHECKPOINTS, NEIGHBOURS = 14, 0.06
SCATTERS = (0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.02)
NOISES = (0.003, 0.004, 0.005, 0.007, 0.01, 0.02)  # none smaller: checkpoints of one training have correlated errors
SOURCE = "Gemstones, arXiv:2502.06857"

_PRIOR = {  # middle and standard deviation before any training run is seen
    "level": (0.0, 1e-6),  # relative to the lab's own level
    "ln_floor": (0.3, 0.5),
    "ln_size": (0.2, 1.0),
    "size_exponent": (0.2, 0.15),
    "ln_text": (-2.0, 1.0),
    "text_exponent": (0.4, 0.2),
    "text_growth": (0.0, 0.2),
    "ln_depth": (1.0, 1.5),  # 1 + 2.7 / layers
    "ln_width": (6.0, 1.5),  # 1 + 400 / width
    "ffn": (0.05, 0.05),  # a ratio four times off 10 costs about half a per cent of loss: Kaplan et al., figure 5
    "kv": (
        0.026,
        0.026,
    ),  # one key-value head instead of eight, with equal parameters, costs 0.3 % of loss (Shazeer 2019, table 3)
    "attention": (0.05, 0.05),  # an eighth of the width, with equal parameters, costs 1.2 % of loss (the same table)
    "ln_bits": (math.log(2.67), 0.3),  # Kumar et al. 2024, fitted to training runs in 3 to 12 bits
    "between": (0.5, 0.3),  # nine in ten lie between 0 and 1
}


def prior() -> Law:
    """Returns the prior law, before any training run is seen."""
    middle, spread = (np.array([_PRIOR[name][i] for name in CONSTANTS]) for i in (0, 1))
    return Law(
        constants=middle, covariance=np.diag(spread**2), scatter=0.003, noise=0.002,
        layer_parameters=(1.0, 1e13), tokens=(1.0, 1e16), source="nothing",
    )  # fmt: skip


def read(folder: Path) -> LawTrainings:
    """Reads all training runs of the tables in ``folder``.

    Raises:
        InputError: The folder has no table of training runs.
    """
    rows: list[dict[str, str]] = []
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows.extend(row for row in csv.DictReader(io.StringIO(data.decode(), newline="")) if "loss_nats" in row)
    if not rows:
        raise InputError(f"{folder}: no table with a column loss_nats")
    return trainings_of(rows, file=folder / "table")


def shape_numbers(trainings: LawTrainings) -> Float64Array:
    """Returns a number for each training run, (n,); runs with equal width, depth and parameters have equal numbers."""
    _, numbers = np.unique(trainings.shapes.columns().round(6), axis=1, return_inverse=True)
    return np.asarray(numbers)


def thinned(trainings: LawTrainings) -> LawTrainings:
    """Keeps about ``CHECKPOINTS`` checkpoints of each shape, with the last; a local linear trend smooths the losses."""
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
    """Fits the lab's own law to ``thinned`` training runs."""
    return fitted(prior(), trainings, source=SOURCE)


def fitted(prior: Law, trainings: LawTrainings, *, source: str) -> Law:
    """Fits a law to training runs, starting from a vague ``prior``.

    Scatter and noise are the most likely values on a grid; then all uncertainties are scaled to match the errors on
    left-out shapes.
    """
    law = updated(prior, trainings, source=source)
    for _ in range(2):
        off = np.log(trainings.nats_per_token / law.nats_per_token(trainings.shapes, trainings.tokens))
        change = law.sensitivities(trainings.shapes, trainings.tokens)
        errors, believed = Errors.of(law, trainings), np.asarray(np.linalg.inv(prior.covariance), np.float64)
        pairs = itertools.product(SCATTERS, NOISES)
        scatter, noise = max(
            pairs, key=lambda pair: likelihood(replace(errors, scatter=pair[0], noise=pair[1]), off, change, believed)
        )
        law = updated(replace(prior, scatter=scatter, noise=noise), trainings, source=source)
    law = calibrated(law, prior, trainings)
    least, most, *_ = trainings.shapes.columns()
    tokens = trainings.tokens
    return replace(
        law,
        layer_parameters=(float(least.min()), float(most.max())),
        tokens=(float(tokens.min()), float(tokens.max())),
    )


def calibrated(law: Law, prior: Law, trainings: LawTrainings) -> Law:
    """Scales the law's uncertainty to the errors on left-out shapes; constants that the data hardly determine keep the
    prior's uncertainty.

    The fit without a shape is approximated by one linear step from the fit to all shapes, as with the hat matrix in
    least squares.
    """
    errors = Errors.of(law, trainings)
    off = np.log(trainings.nats_per_token / law.nats_per_token(trainings.shapes, trainings.tokens))
    change = law.sensitivities(trainings.shapes, trainings.tokens)
    curvature = np.linalg.inv(law.covariance)
    squares = []
    for mine in errors.member.T > 0:
        weighted = replace(errors, member=np.ones((mine.sum(), 1))).solve(np.column_stack([change[mine], off[mine]]))
        without = np.linalg.inv(curvature - change[mine].T @ weighted[:, :-1])
        last = np.flatnonzero(mine)[trainings.tokens[mine].argmax()]
        miss = off[last] + change[last] @ without @ change[mine].T @ weighted[:, -1]
        squares.append(miss**2 / (change[last] @ without @ change[last] + law.scatter**2 + law.noise**2))
    few = 1 + (Z90**2 + 1) / (4 * len(squares))  # Student's quantile over the normal one (Abramowitz and Stegun 26.7.5)
    factor = few * math.sqrt(np.mean(squares))
    learnt = np.diag(law.covariance) < 0.99 * np.diag(prior.covariance)
    scale = np.where(learnt, factor, 1.0)
    return replace(
        law,
        covariance=law.covariance * np.outer(scale, scale),
        scatter=law.scatter * factor,
        noise=law.noise * factor,
    )


def likelihood(errors: Errors, off: Float64Array, change: Float64Array, believed: Float64Array) -> float:
    """Restricted log likelihood (REML) of the residuals ``off``."""
    curvature = change.T @ errors.solve(change) + believed
    taken = float(np.linalg.slogdet(curvature)[1])
    return -0.5 * (float(off @ errors.solve(off)) + log_determinant(errors) + taken)


def log_determinant(errors: Errors) -> float:
    """Log determinant of the errors' covariance."""
    count, shapes = errors.member.shape
    joint = np.log(errors.noise**2 + errors.member.sum(axis=0) * errors.scatter**2).sum()
    return float(joint + (count - shapes) * math.log(errors.noise**2))


def for_any_text(law: Law, trainings: LawTrainings) -> Law:
    """Returns the law for a third lab's text. Its level is midway between the two labs' levels; the level's standard
    deviation is that of the two levels, widened for a third one.
    """
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
    """Fits the law and writes the file that chipwise ships."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    print(fit(options.quality, options.out, progress=print))


if __name__ == "__main__":
    main()

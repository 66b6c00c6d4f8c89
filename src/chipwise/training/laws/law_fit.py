"""Fits the scaling law to trainings: the bundled published ones, or a few of your own.

Both compute the maximum a posteriori constants from the prior (the law and its covariance) and the trainings. A
training's error is the sum of an error of its shape (shared by the shape's checkpoints) and an error of its own. A
single training mostly changes the level, which is the most uncertain constant; twenty also change the exponents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import read_rows
from chipwise.core.statistics import Z90
from chipwise.core.units import parse
from chipwise.errors import ChipwiseError, SpecError
from chipwise.model.published.read import resolve
from chipwise.training.laws.laws import Law
from chipwise.training.laws.shapes import Shapes

VOCABULARY = 50_304  # vocabulary assumed for tables without one: that of the Gemstones
GATED_SHARE = 0.8  # assumed share of a layer's parameters in the feed-forward: gated, four widths
_STEPS = 60
_SCATTERS = (0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.02)
_NOISES = (0.003, 0.004, 0.005, 0.007, 0.01, 0.02)  # none smaller: checkpoints of one training have correlated errors


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTrainings:
    """Trainings of known shape: tokens read and nats per token reached, each (n,)."""

    shapes: Shapes
    tokens: Float64Array
    nats_per_token: Float64Array

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, chosen: NDArray[np.bool_]) -> LawTrainings:
        """The trainings selected by the mask ``chosen`` (n,)."""
        kept = Shapes(**dict(zip(Shapes.__dataclass_fields__, self.shapes.columns()[:, chosen], strict=True)))
        return LawTrainings(shapes=kept, tokens=self.tokens[chosen], nats_per_token=self.nats_per_token[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """Errors of n trainings around a law: one per shape, shared by its checkpoints, and one per training.

    Their covariance is scatter² Z Zᵀ + noise² I with Z (n, shapes) 1 if a training has a shape; the Woodbury
    identity inverts it, because its columns do not overlap.
    """

    member: Float64Array
    scatter: float
    noise: float

    @classmethod
    def of(cls, law: Law, trainings: LawTrainings) -> _Errors:
        _, number = np.unique(trainings.shapes.columns(), axis=1, return_inverse=True)
        return cls(member=np.eye(number.max() + 1)[number], scatter=law.scatter, noise=law.noise)

    def solve(self, right: Float64Array) -> Float64Array:
        """Inverse of the covariance multiplied by ``right`` (n, …)."""
        shared = self.scatter**2 / (self.noise**2 + self.member.sum(axis=0) * self.scatter**2)
        weighted = (self.member * shared) @ (self.member.T @ right)
        return np.asarray((right - weighted) / self.noise**2)

    def log_determinant(self) -> float:
        """Log determinant of the covariance."""
        count, shapes = self.member.shape
        joint = np.log(self.noise**2 + self.member.sum(axis=0) * self.scatter**2).sum()
        return float(joint + (count - shapes) * math.log(self.noise**2))


def updated(law: Law, trainings: LawTrainings, *, source: str) -> Law:
    """Updates ``law`` by ``trainings``: the most probable constants and their remaining uncertainty."""
    observed = np.log(trainings.nats_per_token)
    errors = _Errors.of(law, trainings)
    believed = np.linalg.inv(law.covariance)

    def miss(constants: Float64Array) -> tuple[float, Float64Array]:
        off = observed - np.log(replace(law, constants=constants).nats_per_token(trainings.shapes, trainings.tokens))
        moved = constants - law.constants
        return float(off @ errors.solve(off) + moved @ believed @ moved), off

    constants, damping = law.constants, 1e-3
    worst, off = miss(constants)
    for _ in range(_STEPS):  # Levenberg–Marquardt iterations
        change = replace(law, constants=constants).sensitivities(trainings.shapes, trainings.tokens)
        curvature = change.T @ errors.solve(change) + believed
        slope = change.T @ errors.solve(off) - believed @ (constants - law.constants)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), slope)
        tried, off_there = miss(constants + step)
        if tried <= worst:
            done = worst - tried < 1e-9 * max(1.0, worst)
            constants, worst, off, damping = constants + step, tried, off_there, damping / 5
            if done:
                break
        else:
            damping *= 5
    change = replace(law, constants=constants).sensitivities(trainings.shapes, trainings.tokens)
    covariance = np.linalg.inv(change.T @ errors.solve(change) + believed)
    return replace(law, constants=constants, covariance=(covariance + covariance.T) / 2, source=source)


def fitted(prior: Law, trainings: LawTrainings, *, source: str) -> Law:
    """Fits a law to trainings from a vague ``prior``.

    Scatter and noise are the most likely values on a grid; then all uncertainties are scaled to match the errors on
    left-out shapes.
    """
    law = updated(prior, trainings, source=source)
    for _ in range(2):
        off = np.log(trainings.nats_per_token / law.nats_per_token(trainings.shapes, trainings.tokens))
        change = law.sensitivities(trainings.shapes, trainings.tokens)
        errors, believed = _Errors.of(law, trainings), np.asarray(np.linalg.inv(prior.covariance), np.float64)
        pairs = itertools.product(_SCATTERS, _NOISES)
        scatter, noise = max(
            pairs, key=lambda pair: _likelihood(replace(errors, scatter=pair[0], noise=pair[1]), off, change, believed)
        )
        law = updated(replace(prior, scatter=scatter, noise=noise), trainings, source=source)
    law = _calibrated(law, prior, trainings)
    least, most, *_ = trainings.shapes.columns()
    tokens = trainings.tokens
    return replace(
        law,
        layer_parameters=(float(least.min()), float(most.max())),
        tokens=(float(tokens.min()), float(tokens.max())),
    )


def _calibrated(law: Law, prior: Law, trainings: LawTrainings) -> Law:
    """Scales the law's uncertainty to the errors on left-out shapes; directions without data keep the prior's.

    The fit without a shape is approximated by one linear step from the fit to all shapes, as with the hat matrix in
    least squares.
    """
    errors = _Errors.of(law, trainings)
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


def _likelihood(errors: _Errors, off: Float64Array, change: Float64Array, believed: Float64Array) -> float:
    """Restricted log likelihood (REML) of the residuals ``off``."""
    curvature = change.T @ errors.solve(change) + believed
    taken = float(np.linalg.slogdet(curvature)[1])
    return -0.5 * (float(off @ errors.solve(off)) + errors.log_determinant() + taken)


def read_trainings(path: str | Path) -> LawTrainings:
    """Reads trainings from a CSV file (also gzipped).

    Columns: ``tokens`` and ``loss_nats`` (nats per token; or ``bits_per_byte`` with ``bytes_per_token``), and either
    ``model`` (a known name, or the path of a config relative to the table) or ``width``, ``depth`` and ``parameters``
    (all), with ``vocab_size`` (50,304 unless stated; untied from the embeddings), ``ffn_share`` and ``queries_per_kv``.

    Raises:
        SpecError: The file is not such a table; the message names the row and column.
    """
    path = Path(path)
    rows = read_rows(path, required=("tokens",), optional=("loss_nats", "bits_per_byte", "bytes_per_token", "model"))
    return trainings_of(rows, file=path)


def trainings_of(rows: Iterable[Mapping[str, str]], *, file: Path) -> LawTrainings:
    """The trainings of a table's rows; see :func:`read_trainings`.

    Raises:
        SpecError: A row is invalid; the message names the row and column.
    """
    found, tokens, nats = [], [], []
    for number, row in enumerate(rows, start=2):
        try:
            found.append(_shape(row, file.parent))
            tokens.append(parse(row["tokens"], "count"))
            nats.append(_nats(row))
        except ChipwiseError as error:
            raise SpecError(f"row {number}: {error}", file=str(file)) from None
    columns = np.concatenate([shape.columns() for shape in found], axis=1)
    shapes = Shapes(**dict(zip(Shapes.__dataclass_fields__, columns, strict=True)))
    return LawTrainings(shapes=shapes, tokens=np.array(tokens), nats_per_token=np.array(nats))


def _shape(row: Mapping[str, str], folder: Path) -> Shapes:
    if row.get("model"):
        near = folder / row["model"]
        return Shapes.of(resolve(near if near.exists() else row["model"]))
    width, depth, parameters = (_number(row, name) for name in ("width", "depth", "parameters"))
    layers = parameters - 2 * width * _number(row, "vocab_size", VOCABULARY)
    if layers <= 0:
        raise SpecError(f"leaves no parameters for the layers after two tables of width {width:g}", field="parameters")
    share = _number(row, "ffn_share", GATED_SHARE * layers / (depth * width**2))
    queries = _number(row, "queries_per_kv", 2.0)
    return Shapes(least=layers, most=layers, width=width, depth=depth, ffn_share=share, queries_per_kv=queries)


def _nats(row: Mapping[str, str]) -> float:
    if row.get("loss_nats"):
        return _number(row, "loss_nats")
    return _number(row, "bits_per_byte") * _number(row, "bytes_per_token") * math.log(2)


def _number(row: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = row.get(name) or ""
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SpecError(f"must be a positive number, not {text!r}", field=name)
    return value

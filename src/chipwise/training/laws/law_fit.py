"""Updates the scaling law with training runs, such as a few of your own.

:func:`updated` computes the maximum a posteriori constants from the prior (the law and its covariance) and the training
runs. The logarithm of a run's loss differs from the law's prediction by the sum of two errors: one that all runs of the
same shape have in common, and one that is specific to the run. A single run mostly changes ``s``, the logarithm of the
law's overall factor, because this constant is the most uncertain. Twenty runs also change the exponents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import read_rows
from chipwise.core.units import parse
from chipwise.errors import ChipwiseError, SpecError
from chipwise.model.published.read import resolve
from chipwise.training.laws.laws import Law
from chipwise.training.laws.shapes import Shapes

VOCABULARY = 50_304  # vocabulary assumed for tables without one: that of the Gemstones models
GATED_SHARE = 0.8  # assumed share of a layer's parameters in the feed-forward: gated, four widths
_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTrainings:
    """Training runs: shape, number of training tokens and final nats per token, each (n,)."""

    shapes: Shapes
    tokens: Float64Array
    nats_per_token: Float64Array

    def __len__(self) -> int:
        return len(self.tokens)

    def where(self, chosen: NDArray[np.bool_]) -> LawTrainings:
        """The training runs that the mask ``chosen`` (n,) selects."""
        kept = Shapes(**dict(zip(Shapes.__dataclass_fields__, self.shapes.columns()[:, chosen], strict=True)))
        return LawTrainings(shapes=kept, tokens=self.tokens[chosen], nats_per_token=self.nats_per_token[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Model of the errors of n training runs around a law: one error per shape, and one per run.

    The covariance of the errors is scatter² Z Zᵀ + noise² I, where Z[i, j] is 1 if run i has shape j, else 0. Each row
    of Z has a single 1, so the Woodbury identity gives the inverse directly.
    """

    member: Float64Array
    scatter: float
    noise: float

    @classmethod
    def of(cls, law: Law, trainings: LawTrainings) -> Errors:
        """The error model of ``trainings``, with the law's scatter and noise."""
        _, number = np.unique(trainings.shapes.columns(), axis=1, return_inverse=True)
        return cls(member=np.eye(number.max() + 1)[number], scatter=law.scatter, noise=law.noise)

    def solve(self, right: Float64Array) -> Float64Array:
        """Inverse of the covariance multiplied by ``right`` (n, …)."""
        shared = self.scatter**2 / (self.noise**2 + self.member.sum(axis=0) * self.scatter**2)
        weighted = (self.member * shared) @ (self.member.T @ right)
        return np.asarray((right - weighted) / self.noise**2)


def updated(law: Law, trainings: LawTrainings, *, source: str) -> Law:
    """Updates ``law`` with ``trainings``; returns the law with the most probable constants and their covariance."""
    observed = np.log(trainings.nats_per_token)
    errors = Errors.of(law, trainings)
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


def read_trainings(path: str | Path) -> LawTrainings:
    """Reads training runs from a CSV file (which may be gzipped).

    Columns: ``tokens``; ``loss_nats`` (nats per token), or ``bits_per_byte`` with ``bytes_per_token``; and the shape,
    either as ``model`` (a known name, or the path of a config relative to the table) or as ``width``, ``depth`` and
    ``parameters`` (all parameters, with a head that is not tied to the embeddings). Optional: ``vocab_size`` (default:
    50,304), ``ffn_share`` and ``queries_per_kv``.

    Raises:
        SpecError: The file is not a table of training runs; the message names the row and column.
    """
    path = Path(path)
    rows = read_rows(path, required=("tokens",), optional=("loss_nats", "bits_per_byte", "bytes_per_token", "model"))
    return trainings_of(rows, file=path)


def trainings_of(rows: Iterable[Mapping[str, str]], *, file: Path) -> LawTrainings:
    """The training runs in a table's rows; see :func:`read_trainings`.

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
        raise SpecError(f"too few: embeddings and head of width {width:g} leave none for layers", field="parameters")
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

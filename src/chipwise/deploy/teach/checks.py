"""Checks of a table: errors on left-out models, and implausible rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90, conformal_half_width, kendall_tau
from chipwise.deploy.teach.observations import MeasuredRow, Observations, Places, prior_deviation
from chipwise.deploy.teach.posterior import fit
from chipwise.hardware.taught import TaughtError

FOLDS = 8
LEAST = 4  # minimum number of quantities for cross-validation
CONTRADICTS = 4.0  # standard deviations from the fit beyond which a row is flagged
LEAST_FACTOR = 1.3  # minimum ratio between measured and expected time of a flagged row
PRIOR_WIDEN = 10.0  # weight of the fitted interval width, in left-out rows
UNITS = (("milliseconds written as seconds", 1e3), ("seconds written as milliseconds", 1e-3))
UNITS_REACH = 1.1  # largest distance of the log ratio from ln(1000) that suggests a wrong unit
WHOLE_TABLE = 5.0  # log ratio larger than any data sheet's error


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A row that contradicts the other rows."""

    line: int
    model: str
    quantity: str
    measured_s: float
    expected_s: float
    low_s: float
    high_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Results of cross-validation; the standard deviations of predictions are to be multiplied by ``widen``."""

    error: TaughtError | None
    widen: float
    flags: tuple[Flag, ...]


def folds_of(models: Sequence[str]) -> list[Places]:
    """Folds of rows that are left out together: whole models, largest first; single rows if there are few models."""
    few = len(set(models)) < 3
    groups: dict[str | int, list[int]] = {}
    for i, name in enumerate(models):
        groups.setdefault(i if few else name, []).append(i)
    dealt: list[list[int]] = [[] for _ in range(min(FOLDS, len(groups)))]
    for places in sorted(groups.values(), key=lambda each: (-len(each), each[0])):
        min(dealt, key=len).extend(places)
    return [np.array(sorted(each)) for each in dealt]


def check(rows: Sequence[MeasuredRow], seen: Observations) -> Checked:
    """Predicts every quantity by fits that leave its model out.

    Errors and interval widths are computed without flagged rows. A factor for the widths is chosen so that intervals
    contain 90 % of left-out rows (with a correction for the number of rows). The factor is then shrunk towards 1; the
    prior weighs as much as ``PRIOR_WIDEN`` rows.
    """
    n = len(seen)
    if n < LEAST:
        return Checked(error=None, widen=1.0, flags=())
    logs, deviations = np.empty(n), np.empty(n)
    for left in folds_of(seen.models):
        known = seen.only(np.setdiff1d(np.arange(n), left))
        posterior = fit(known, common=prior_deviation(known))
        logs[left], deviations[left] = posterior.predict(seen.only(left))
    errors = np.log(seen.seconds) - logs
    good = np.abs(errors) <= np.maximum(CONTRADICTS * deviations, math.log(LEAST_FACTOR))
    flags = tuple(_flag(rows, seen, i, logs[i], deviations[i]) for i in range(n) if not good[i])
    if not good.any():
        good[:] = True
    misses = np.exp(logs[good]) / seen.seconds[good] - 1
    widen = _widen(np.abs(errors[good]) / deviations[good])
    error = TaughtError(
        rows=int(good.sum()),
        mean=float(np.mean(np.abs(misses))),
        median=float(np.median(np.abs(misses))),
        inside=float(np.mean(np.abs(errors[good]) <= Z90 * widen * deviations[good])),
        sheet_mean=float(np.mean(np.abs(seen.sheet_s[good] / seen.seconds[good] - 1))),
    )
    return Checked(error=error, widen=widen, flags=flags)


def _widen(z: Float64Array) -> float:
    """Returns a factor for the standard deviations of predictions; ``z`` holds errors divided by them.

    With the factor, 90 % of errors are below 1.645 standard deviations. It is then shrunk towards 1.
    """
    found = conformal_half_width(z, 0.9) / Z90
    weight = len(z) / (len(z) + PRIOR_WIDEN)
    return float(np.clip(found**weight, 0.7, 5.0))


def _flag(rows: Sequence[MeasuredRow], seen: Observations, i: int, log: float, deviation: float) -> Flag:
    row = rows[int(seen.rows[i])]
    expected = math.exp(log)
    return Flag(
        line=row.number,
        model=row.name,
        quantity=seen.quantities[i],
        measured_s=float(seen.seconds[i]),
        expected_s=expected,
        low_s=expected * math.exp(-Z90 * deviation),
        high_s=expected * math.exp(Z90 * deviation),
        reason=_reason(row, seen.quantities[i], float(seen.seconds[i]), expected),
    )


def _reason(row: MeasuredRow, quantity: str, measured: float, expected: float) -> str:
    ratio = measured / expected
    for name, factor in UNITS:
        if abs(math.log(ratio / factor)) < UNITS_REACH:
            return f"{name}?"
    tokens = {"tpot": row.batch, "total": row.batch * row.new_tokens, "ttft": row.batch * row.prompt_tokens}[quantity]
    far = abs(math.log(ratio)) > math.log(3)
    if far and abs(math.log(measured * expected / tokens)) < 0.4:
        return "tokens/s written as seconds?"
    return (
        f"{ratio:.2g} times what the other rows say"
        if ratio > 1
        else f"{1 / ratio:.2g} times faster than the other rows say"
    )


def whole_table(seen: Observations) -> list[str]:
    """Warnings about a unit that seems wrong in all rows."""
    if not len(seen):
        return []
    logs = np.log(seen.seconds / seen.sheet_s)
    middle = float(np.median(logs))
    found = []
    for name, factor in UNITS:
        if abs(middle - math.log(factor)) < 1.9 and abs(middle) > WHOLE_TABLE:
            found.append(f"all times are about {factor:g} times what the data sheet says: {name}?")
    if len(seen) >= 8 and kendall_tau(seen.seconds, seen.sheet_s) < -0.5:
        found.append("times fall where the data sheet says that they rise: tokens/s written as seconds?")
    return found

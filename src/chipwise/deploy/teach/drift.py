"""Drift: a machine that is faster or slower today than when it was taught, corrected from a few rows measured again.

Drift is mostly a common factor, and to a lesser degree one of each group, label and smooth part. A row that was
measured on both days gives its change directly, without the profile's prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.deploy.teach.observations import MeasuredRow, Observations, observe
from chipwise.deploy.teach.posterior import label_matrix, linearise_at, normal_update
from chipwise.deploy.teach.reading import from_record
from chipwise.errors import InputError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import Teaching
from chipwise.predict.served.taught_pass import TERMS, basis, matrix, sequence

COMMON_SD = 0.3  # of the log factor common to a day
TERM_SD = 0.12
LABEL_SD = 0.08
SMOOTH_SHARE = 0.3  # of the smooth part's amplitude
ROUNDS = 8  # of weighting down rows that contradict
FREEDOM = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drifted:
    """A profile for another day, with statistics of the rows measured again."""

    teaching: Teaching
    rows: int
    matched: int  # rows that the profile had learnt from
    factor: float  # median of today's seconds over what the profile expected
    before: float  # mean error of the profile on today's rows
    after: float  # and of the corrected one, each row left out in turn


def drift_covariance(labels: int, points: int) -> Float64Array:
    """Covariance of the logarithms by which a day differs."""
    return np.diag(
        np.concatenate(
            [[COMMON_SD**2], np.full(len(TERMS), TERM_SD**2), np.full(labels, LABEL_SD**2),
             np.full(points, SMOOTH_SHARE**2)]
        )
    )  # fmt: skip


def follow(teaching: Teaching, again: Sequence[MeasuredRow], device: DeviceProfile, *, version: int) -> Drifted:
    """Corrects a profile to the day of ``again``.

    Raises:
        InputError: The profile learnt from nothing, or none of the rows can be priced.
    """
    if not teaching.rows:
        raise InputError(f"{teaching.name} was taught nothing yet, so nothing can have drifted")
    today, errors = observe(again, device)
    if not len(today):
        raise InputError(f"none of the rows can be used: {next(iter(errors.values()), 'nothing was timed')}")
    before = _matched(teaching, again, today)
    if (before == today.seconds).all():
        raise InputError("these are the times that it learnt from; measure the rows again on another day")
    theta, points = np.asarray(teaching.mean), np.asarray(teaching.points).reshape(-1, today.figures.shape[1])
    smooth = basis(today.figures, points, amplitude=teaching.amplitude, reach=teaching.reach)
    at = linearise_at(np.asarray(teaching.units), today, theta, smooth, label_matrix(today, teaching.labels))
    covariance = np.asarray(teaching.covariance)
    spread = drift_covariance(len(teaching.labels), len(points))
    own = ((at.slopes @ covariance) * at.slopes).sum(axis=1)
    known = ~np.isnan(before)
    target = np.log(today.seconds) - np.where(known, np.log(np.where(known, before, 1.0)), at.logs)
    noise = np.where(known, 2 * teaching.noise**2, teaching.noise**2 + own)
    change, moved = _robust(at.slopes, target, noise, spread)
    left = _left_out(at.slopes, target, noise, spread)
    corrected = replace(
        teaching,
        version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mean=sequence(theta + change),
        covariance=matrix(covariance + moved),
    )
    return Drifted(
        teaching=corrected,
        rows=len(today),
        matched=int(known.sum()),
        factor=float(np.exp(np.median(np.log(today.seconds) - at.logs))),
        before=float(np.mean(np.abs(np.exp(at.logs) / today.seconds - 1))),
        after=float(np.mean(np.abs(np.exp(at.logs + left) / today.seconds - 1))),
    )


def _robust(
    slopes: Float64Array, target: Float64Array, noise: Float64Array, spread: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Mean and covariance of the change, with lower weights for rows that contradict the others."""
    weights = np.ones(len(target))
    mean, covariance = np.zeros(len(spread)), spread
    for _ in range(ROUNDS):
        covariance, mean = normal_update(slopes, target, weights / noise, np.diag(spread))
        error = target - slopes @ mean
        weights = np.minimum((FREEDOM + 1) / (FREEDOM + error**2 / noise), 1.0)
    return mean, covariance


def _left_out(slopes: Float64Array, target: Float64Array, noise: Float64Array, spread: Float64Array) -> Float64Array:
    """Expected change of each row, from the other rows."""
    found = np.empty(len(target))
    for i in range(len(target)):
        kept = np.arange(len(target)) != i
        mean, _ = _robust(slopes[kept], target[kept], noise[kept], spread)
        found[i] = slopes[i] @ mean
    return found


def _matched(teaching: Teaching, again: Sequence[MeasuredRow], today: Observations) -> Float64Array:
    """(n,): what each quantity took when the profile was taught; NaN where it was not measured then."""
    then: dict[tuple[object, ...], Mapping[str, float]] = {}
    for record in teaching.records:
        row = from_record(record)
        then[_setting(row)] = {str(name): value for name, value in row.measured().items()}
    found = [
        then.get(_setting(again[int(i)]), {}).get(name, np.nan)
        for i, name in zip(today.rows, today.quantities, strict=True)
    ]
    return np.array(found, float)


def _setting(row: MeasuredRow) -> tuple[object, ...]:
    """A row without its times and line number."""
    return (
        row.identity, row.runtime, row.weights, row.kv, row.batch, row.prompt_tokens, row.new_tokens, row.context,
        row.variant,
    )  # fmt: skip

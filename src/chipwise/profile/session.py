"""A measuring session: many models one after the other, those timed at a bad moment again later, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from chipwise.core.errors import MeasurementError
from chipwise.profile.measurement import Measurement
from chipwise.profile.verdict import judge

T = TypeVar("T")
REPEATS = 2  # rounds after the first, of what was not clean


def measure_session(
    items: Sequence[T],
    measure: Callable[[T], Measurement],
    *,
    repeats: int = REPEATS,
    told: Callable[[int, int], None] | None = None,
) -> list[Measurement | MeasurementError]:
    """Each item's measurement, or why it has none, in the order of ``items``.

    Items whose measurement was not clean are measured again after all the others, at most ``repeats`` times; the
    quietest measurement counts. What failed is not tried again: a model that crashes does so at any hour.

    Args:
        items: What to measure.
        measure: Measures one item once.
        repeats: Most further rounds.
        told: Hears how many measurements are done, and of how many (as far as is known).
    """
    found: list[Measurement | MeasurementError | None] = [None] * len(items)
    wanted, done = list(range(len(items))), 0
    for _ in range(1 + repeats):
        total = done + len(wanted)
        for i in wanted:
            known = found[i]
            try:
                new = measure(items[i])
                if not isinstance(known, Measurement) or loudness(new) < loudness(known):
                    found[i] = new
            except MeasurementError as error:
                found[i] = known or error
            done += 1
            if told is not None:
                told(done, total)
        wanted = [i for i in wanted if isinstance(item := found[i], Measurement) and not item.clean]
    return [item for item in found if item is not None]


def loudness(measurement: Measurement) -> float:
    """The worst reading over its limit; below 1 is clean."""
    readings = {name: value for name, value in measurement.environment.items() if isinstance(value, int | float)}
    return judge(readings).score

"""Times of many operators at once: the kernel models evaluate all calls of one kind together, as arrays of sizes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import caches
from chipwise.predict.kernels.one_row import served_times
from chipwise.predict.kernels.times import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of an operator on a device. Its sizes are numbers or arrays of ``rows`` values."""

    op: Op
    device: DeviceProfile
    stack: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Calls that differ only in their sizes, joined to one operator.

    Each size of ``op`` is an array that concatenates the values of all these calls. ``members`` lists the calls'
    indices in the same order.
    """

    op: Op
    device: DeviceProfile
    stack: str
    members: tuple[int, ...]


def batches(calls: Sequence[Call]) -> Iterator[Batch]:
    """Joins the calls that differ only in their sizes."""
    groups: dict[tuple[type[Op], str, str, tuple[bool, ...], tuple[object, ...]], list[int]] = {}
    values: list[tuple[object, ...]] = []
    for i, call in enumerate(calls):
        kind = type(call.op)
        found = _fields(kind)[1](call.op)
        are_sizes = _are_sizes(found)
        rest = tuple(itertools.compress(found, map(operator.not_, are_sizes)))
        values.append(found)
        groups.setdefault((kind, call.device.name, call.stack, are_sizes, rest), []).append(i)
    for (kind, _, stack, are_sizes, _), members in groups.items():
        rows = np.array([calls[i].rows for i in members])
        columns = zip(*(values[i] for i in members), strict=True)
        fields = {
            name: _joined(column, rows) if is_size else column[0]
            for name, is_size, column in zip(_fields(kind)[0], are_sizes, columns, strict=True)
        }
        yield Batch(op=kind(**fields), device=calls[members[0]].device, stack=stack, members=tuple(members))


def _joined(values: Sequence[Size], rows: npt.NDArray[np.int64]) -> Size:
    """Joins the values of a size in several calls to one array; a number is repeated for each row of its call."""
    if not any(isinstance(value, np.ndarray) and value.ndim for value in values):
        return np.repeat(np.asarray(values), rows)
    spread = [
        value if isinstance(value, np.ndarray) and value.ndim else np.full(n, value)
        for value, n in zip(values, rows, strict=True)
    ]
    return np.concatenate(spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCalls:
    """Times of several calls; the rows of all calls are concatenated."""

    figures: Float64Array  # (FIGURES, rows of all calls)
    situations: tuple[Situation, ...]  # one per call


FIGURES = ("latency_s", "log_halfwidth", "compute_s", "memory_s", "launch_s", "doubt", "reading_s")


def time_kernels(calls: Sequence[Call], *, fold: str | None = None) -> TimedCalls:
    """Times of all calls. Calls that differ only in their sizes are evaluated together."""
    stops = np.cumsum([call.rows for call in calls])
    figures = np.empty((len(FIGURES), int(stops[-1]) if len(calls) else 0))
    situations: list[Situation] = ["seen"] * len(calls)
    for batch in batches(calls):
        times = served_times(batch.op, batch.device, stack=batch.stack, fold=fold)
        columns = np.concatenate([np.arange(stops[i] - calls[i].rows, stops[i]) for i in batch.members])
        for row, name in enumerate(FIGURES):
            value = caches.reading_s(times, batch.device, batch.stack) if name == "reading_s" else getattr(times, name)
            figures[row, columns] = 0.0 if value is None else value
        for i in batch.members:
            situations[i] = times.situation
    return TimedCalls(figures=figures, situations=tuple(situations))


def op_at(op: Op, i: int) -> Op:
    """``op`` with only row ``i`` of its sizes."""
    names, values_of = _fields(type(op))
    values = values_of(op)
    fields = {
        name: _at(value, i) if is_size else value
        for name, value, is_size in zip(names, values, _are_sizes(values), strict=True)
    }
    return type(op)(**fields)


def _at(value: object, i: int) -> object:
    return np.asarray(value).flat[i if isinstance(value, np.ndarray) and value.ndim else 0].item()


def _are_sizes(values: tuple[object, ...]) -> tuple[bool, ...]:
    """Mask of an operator's fields that are sizes."""
    return tuple(map(_NUMBERS.__contains__, map(type, values)))


_NUMBERS = frozenset({int, float, np.ndarray, np.int64, np.float64})


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, ...], Callable[[Op], tuple[object, ...]]]:
    """Names of an operator's fields, and a getter that reads all of them."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    return names, operator.attrgetter(*names)

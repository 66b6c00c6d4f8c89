"""Seconds of many operators at once: calls of a kind are put end to end and asked of the kernel model together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import Op
from chipwise.predict.kernels import KernelTimes, times_of

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operator whose sizes are numbers or arrays of ``rows`` values, on a device."""

    op: Op
    device: DeviceProfile
    stack: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Calls that differ only in their sizes as one operator: call ``members[j]`` has the rows up to ``stops[j]``."""

    op: Op
    device: DeviceProfile
    stack: str
    members: tuple[int, ...]
    stops: tuple[int, ...]

    def slices(self) -> Iterator[tuple[int, slice]]:
        """Each call's number, and which rows are its own."""
        for i, start, stop in zip(self.members, (0, *self.stops), self.stops, strict=False):
            yield i, slice(start, stop)


def batches(calls: Sequence[Call]) -> Iterator[Batch]:
    """The calls put end to end where they differ only in their sizes."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    split = [_split(call.op) for call in calls]
    for i, (call, (sizes, rest)) in enumerate(zip(calls, split, strict=True)):
        key = (type(call.op), call.device.name, call.stack, tuple(sizes), tuple(sorted(rest.items())))
        groups.setdefault(key, []).append(i)
    for members in groups.values():
        first = calls[members[0]]
        rows = np.array([calls[i].rows for i in members])
        sizes = {name: _joined([split[i][0][name] for i in members], rows) for name in split[members[0]][0]}
        yield Batch(
            op=type(first.op)(**sizes, **split[members[0]][1]),
            device=first.device,
            stack=first.stack,
            members=tuple(members),
            stops=tuple(int(stop) for stop in np.cumsum(rows)),
        )


def _joined(values: Sequence[Any], rows: npt.NDArray[np.int64]) -> Any:
    """One array of all rows; numbers stand for as many rows as their call has."""
    if not any(np.ndim(value) for value in values):
        return np.repeat(np.asarray(values), rows)
    spread = [
        value if isinstance(value, np.ndarray) and value.ndim else np.full(n, value)
        for value, n in zip(values, rows, strict=True)
    ]
    return np.concatenate(spread)


def price(calls: Sequence[Call], *, fold: str | None = None) -> list[KernelTimes]:
    """Times of every call, each an array of its ``rows``.

    Calls that differ only in their sizes are one question to the kernel model.
    """
    found: list[KernelTimes | None] = [None] * len(calls)
    for batch in batches(calls):
        times = times_of(batch.op, batch.device, stack=batch.stack, fold=fold)
        for i, rows in batch.slices():
            found[i] = _slice(times, rows)
    return [times for times in found if times is not None]


def op_at(op: Op, i: int) -> Op:
    """The operator with the sizes that it has in row ``i``."""
    sizes, rest = _split(op)
    return type(op)(
        **{name: np.asarray(value).flat[i if np.ndim(value) else 0].item() for name, value in sizes.items()}, **rest
    )


def _split(op: Op) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields that are sizes, and fields that are not."""
    sizes: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name in _fields(type(op)):
        value = getattr(op, name)
        (sizes if type(value) in _NUMBERS else rest)[name] = value
    return sizes, rest


_NUMBERS = frozenset({int, float, np.ndarray, np.int64, np.float64})


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _slice(times: KernelTimes, rows: slice) -> KernelTimes:
    def part(values: Array) -> Array:
        values = np.asarray(values, dtype=np.float64)
        return values[rows] if values.ndim else np.full(rows.stop - rows.start, float(values))

    return KernelTimes(
        latency_s=part(times.latency_s),
        log_halfwidth=part(times.log_halfwidth),
        compute_s=part(times.compute_s),
        memory_s=part(times.memory_s),
        launch_s=part(times.launch_s),
        situation=times.situation,
        doubt=None if times.doubt is None else part(times.doubt),
    )

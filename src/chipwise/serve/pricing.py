"""Seconds of many operators at once: calls of a kind are put end to end and asked of the kernel model together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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


def price(calls: Sequence[Call], *, fold: str | None = None) -> list[KernelTimes]:
    """Times of every call, each an array of its ``rows``.

    Calls that differ only in their sizes are one question to the kernel model.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    split = [_split(call.op) for call in calls]
    for i, (call, (sizes, rest)) in enumerate(zip(calls, split, strict=True)):
        key = (type(call.op), call.device.name, call.stack, tuple(sizes), tuple(sorted(rest.items())))
        groups.setdefault(key, []).append(i)
    found: list[KernelTimes | None] = [None] * len(calls)
    for members in groups.values():
        first = calls[members[0]]
        rows = [calls[i].rows for i in members]
        sizes = {
            name: np.concatenate([np.broadcast_to(np.asarray(split[i][0][name]), calls[i].rows) for i in members])
            for name in split[members[0]][0]
        }
        op = type(first.op)(**sizes, **split[members[0]][1])
        times = times_of(op, first.device, stack=first.stack, fold=fold)
        stops = np.cumsum(rows)
        for i, stop in zip(members, stops, strict=True):
            found[i] = _slice(times, int(stop) - calls[i].rows, int(stop))
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
    for field in dataclasses.fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        numeric = isinstance(value, np.ndarray | int | float | np.number) and not isinstance(value, bool)
        (sizes if numeric else rest)[field.name] = value
    return sizes, rest


def _slice(times: KernelTimes, start: int, stop: int) -> KernelTimes:
    count = stop - start

    def part(values: Array) -> Array:
        values = np.asarray(values, dtype=np.float64)
        return values[start:stop] if values.ndim else np.full(count, float(values))

    return KernelTimes(
        latency_s=part(times.latency_s),
        log_halfwidth=part(times.log_halfwidth),
        compute_s=part(times.compute_s),
        memory_s=part(times.memory_s),
        launch_s=part(times.launch_s),
        situation=times.situation,
    )

"""Explains a lack of memory: how much is missing, and the smallest changes that would make the model fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chipwise.core import units
from chipwise.errors import ChipwiseError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import platform_of
from chipwise.predict.served.groups import Group, cost_groups, grouped, groups_of, memory_of
from chipwise.predict.served.memory import DeviceMemory
from chipwise.predict.served.remedies import Remedy, remedies_of, together
from chipwise.predict.served.request import Request

LEFT_TO_MACOS = 8e9  # bytes that must remain for macOS when advising a higher GPU limit
NOTHING = "neither a narrower format, nor more devices, nor fewer requests would fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A change that makes a request fit in memory, and the bytes that it then needs on each device."""

    remedy: Remedy
    needed_bytes: float

    @property
    def text(self) -> str:
        """Text such as ``q4_k_m fits (4.9 GB)`` or ``2 devices fit (9.2 GB on each)``."""
        named = dict(self.remedy.changes)
        size = units.show(self.needed_bytes, "bytes")
        if "tp" in named:
            held = f"{named['tp']} devices"
            return (
                f"{held} fit ({size} on each)"
                if len(named) == 1
                else f"{named['weights']} on {held} fits ({size} each)"
            )
        return f"{named['weights']} fits ({size})" if "weights" in named else f"{self.remedy.words} fit ({size})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a request does not fit in memory: needed and available bytes on each device, and alternatives."""

    said: str  # message with the missing memory and its contents
    devices: int
    needed_bytes: float
    held_said: str  # text for the available memory
    fitting: tuple[Fitting, ...]
    chip: str | None  # the smallest chip on which the request fits, if no change helps
    limit_mib: int | None = None  # limit on GPU memory in macOS with which the request fits

    @property
    def line(self) -> str:
        """A summary such as ``does not fit: needs 17.3 GB, has 12.9 GB; q8_0 fits (9.6 GB)``."""
        each = " on each device" if self.devices > 1 else ""
        needs = f"needs {units.show(self.needed_bytes, 'bytes')}{each}, has {self.held_said}"
        fitting = ", or ".join(each.text for each in self.fitting) or self._else
        return f"does not fit: {needs}; {fitting}{self._raised}"

    @property
    def message(self) -> str:
        """The error message: what the memory would hold, how much is missing, and options that would fit."""
        return f"{self.said}; {would_fit(self.fitting) if self.fitting else self._else}{self._raised}"

    @property
    def _raised(self) -> str:
        raised = f"; or let the GPU have more: sudo sysctl iogpu.wired_limit_mb={self.limit_mib}"
        return raised if self.limit_mib else ""

    @property
    def _else(self) -> str:
        return NOTHING if self.chip is None else f"{NOTHING}; {self.chip} has enough memory"


def would_fit(fitting: Sequence[Fitting]) -> str:
    """Text that lists the command-line options that would make a request fit."""
    return f"{' or '.join(each.remedy.option for each in fitting)} would fit" if fitting else NOTHING


def shortage_text(group: Group, memory: DeviceMemory, i: int) -> str | None:
    """Message that says how much memory request ``i`` of the group lacks; None if it fits."""
    device = group.device
    needed, held = float(memory.peak_bytes[i]), device.usable_bytes
    if needed <= held:
        return None
    parts = ", ".join(f"{name} {units.show(value, 'bytes')}" for name, value in memory.row(i).items())
    each = " on each device" if group.setting.plan.devices > 1 else ""
    return (
        f"{group.setting.arch.name} needs {units.show(needed, 'bytes')}{each} ({parts}) and {device.label} has "
        f"{device.memory_said}: {units.show(needed - held, 'bytes')} too much"
    )


def shortages(requests: Sequence[Request]) -> list[Shortage | None]:
    """The shortage of each request, with the smallest changes that help; None if the request fits or is invalid.

    Three kinds of changes are tried, each with the smallest change first: a weight format with fewer bits, more
    devices, and fewer requests in flight. If none is enough, fewer bits are tried together with more devices.
    """
    groups, _ = grouped(requests)
    short: dict[int, tuple[Group, DeviceMemory, int, str]] = {}
    for group in groups:
        try:
            memory = memory_of(group)
            for i, row in enumerate(group.rows):
                if (said := shortage_text(group, memory, i)) is not None:
                    short[row] = (group, memory, i, said)
        except Unsupported:
            continue
    found = _fitting({row: (requests[row], group) for row, (group, *_) in short.items()})
    return [_shortage(*short[row], fitting=found[row]) if row in short else None for row in range(len(requests))]


def changes_that_fit(requests: Sequence[Request]) -> list[tuple[Fitting, ...]]:
    """For each request, the smallest change of each kind that makes the request fit in memory.

    The kinds of changes are those of :func:`shortages`.

    Raises:
        ChipwiseError: A request cannot be estimated.
    """
    found = _fitting({row: (requests[row], group) for group in groups_of(requests) for row in group.rows})
    return [found[row] for row in range(len(requests))]


def _shortage(group: Group, memory: DeviceMemory, i: int, said: str, *, fitting: tuple[Fitting, ...]) -> Shortage:
    needed = float(memory.peak_bytes[i])
    return Shortage(
        said=said,
        devices=group.setting.plan.devices,
        needed_bytes=needed,
        held_said=group.device.memory_said,
        limit_mib=_limit_mib(group, needed),
        fitting=fitting,
        chip=None if fitting else _chip(group, needed * group.setting.plan.devices),
    )


def _limit_mib(group: Group, needed_bytes: float) -> int | None:
    """The GPU memory limit in MiB that lets the model fit on a Mac; None if too little would be left for macOS."""
    device = group.device
    held_back = device.usable_bytes < device.mem_capacity_bytes
    fits = group.setting.plan.devices == 1 and needed_bytes + LEFT_TO_MACOS <= device.mem_capacity_bytes
    return math.ceil(needed_bytes / 2**20) if held_back and fits else None


def _fitting(short: dict[int, tuple[Request, Group]]) -> dict[int, tuple[Fitting, ...]]:
    """Maps the row of each request to the changes that make the request fit in memory."""
    sorts = {
        row: remedies_of(
            runtime=group.setting.runtime,
            device=group.device,
            weights=group.setting.formats.stated,
            tp=request.deployment.tp,
            batch=request.batch,
        )
        for row, (request, group) in short.items()
    }
    requests = {row: request for row, (request, _) in short.items()}
    found = _first_fitting(requests, sorts)
    none = {row: [together(sorts[row])] for row in sorts if not found[row]}
    return found | _first_fitting({row: requests[row] for row in none}, none)


def _first_fitting(
    requests: dict[int, Request], sorts: dict[int, Sequence[Sequence[Remedy]]] | dict[int, list[list[Remedy]]]
) -> dict[int, tuple[Fitting, ...]]:
    """Maps the row of each request to the first change of each kind that makes the request fit in memory.

    Both arguments have rows as keys. ``sorts`` lists the changes to try, in one list for each kind.
    """
    found: dict[tuple[int, int], Fitting] = {}
    left = {(row, i): sort for row, each in sorts.items() for i, sort in enumerate(each)}
    while left:
        tried: dict[tuple[int, int], tuple[Fitting, Group]] = {}
        for place, sort in left.items():
            if (fitting := _first_that_fits(requests[place[0]], sort)) is not None:
                tried[place] = fitting
        # only an estimate reveals formats for which the device has no rate; all are estimated together
        doubtful = [place for place, (each, group) in tried.items() if _may_lack_a_rate(each.remedy, group)]
        priced = dict(zip(doubtful, cost_groups([tried[place][1] for place in doubtful]), strict=True))
        found |= {place: each for place, (each, _) in tried.items() if not isinstance(priced.get(place), Unsupported)}
        left = {place: _after(left[place], tried[place][0].remedy) for place in tried.keys() - found.keys()}
    return {row: tuple(found[row, i] for i in range(len(each)) if (row, i) in found) for row, each in sorts.items()}


def _after(sort: Sequence[Remedy], tried: Remedy) -> Sequence[Remedy]:
    return sort[sort.index(tried) + 1 :]


def _first_that_fits(request: Request, sort: Sequence[Remedy]) -> tuple[Fitting, Group] | None:
    """The first change in ``sort`` that makes the request fit in memory, and the changed request's group; else None."""
    for remedy in sort:
        groups, errors = grouped([request.but(**dict(remedy.changes))])
        if errors:
            continue
        try:
            needed = float(memory_of(groups[0]).peak_bytes[0])
        except ChipwiseError:
            continue
        if needed <= groups[0].device.usable_bytes:
            return Fitting(remedy=remedy, needed_bytes=needed), groups[0]
    return None


def _may_lack_a_rate(remedy: Remedy, group: Group) -> bool:
    return remedy.field == "weights" and not group.setting.runtime.local


def _chip(group: Group, needed_bytes: float) -> str | None:
    """The name of a chip with at least ``needed_bytes`` of memory and support for the runtime.

    Chips of the same vendor and kind come first, then chips with less memory.
    """
    device = group.device

    def far(other: DeviceProfile) -> tuple[bool, bool, float]:
        return other.vendor != device.vendor, other.kind != device.kind, other.usable_bytes

    able = [each for each in datasheet.load_all() if _holds(each, group, needed_bytes)]
    return min(able, key=far).name if able else None


def _holds(other: DeviceProfile, group: Group, needed_bytes: float) -> bool:
    enough = other.known_bytes is not None and other.known_bytes >= needed_bytes
    return enough and platform_of(other) in group.setting.runtime.runs_on

"""Published facts about chips: one YAML file per device, in which each fact has its unit and its source.

An unpublished fact is absent from the file; asking for it raises Unsupported. Peaks are dense: rates that
need structured sparsity are never listed. Link bandwidths are for one direction. Files do not describe calibrated
machines; a figure is a measurement only if its source says so.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from chipwise.core import files, units
from chipwise.core.dtypes import DType
from chipwise.core.fields import later
from chipwise.errors import InputError, SpecError, UnknownName, Unsupported
from chipwise.hardware import instances, taught, typed
from chipwise.hardware.engines import LEVELS, Engine, Link, MemoryLevel
from chipwise.hardware.facts import (
    Bandwidth,
    Count,
    Fact,
    Frequency,
    Power,
    Price,
    PriceRate,
    Rate,
    Size,
    Temperature,
    Tile,
    Time,
)
from chipwise.hardware.taught import Teaching
from chipwise.hardware.typed import DATA
from chipwise.hardware.typed import names as names

GPU_SHARES_OF_MACS = ((36e9, 2 / 3), (math.inf, 3 / 4))
"""Pairs (size in bytes, share): on a Mac with less memory than this size, macOS lets the GPU use this share of the
memory. Source: ``recommendedMaxWorkingSetSize`` in llama.cpp's log (21,845 of 32,768 MB, 49,152 of 65,536:
ggml-org/llama.cpp issues 1826 and 1870). macOS 26 allows more (107.5 of 128 GiB: antirez/ds4 pull request 893), and
``sudo sysctl iogpu.wired_limit_mb=N`` changes the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The published data sheet of one chip, board or module.

    In cross-validation, devices of one ``family`` are left out together.
    """

    name: str
    title: str
    vendor: str
    family: str
    architecture: str
    kind: Literal["gpu", "npu", "tpu", "cpu", "soc", "accelerator"]
    year: int
    aliases: tuple[str, ...] = ()
    unit: str = ""
    units: Count | None = None
    clock: Frequency | None = None
    engines: tuple[Engine, ...]
    memory: tuple[MemoryLevel, ...]
    links: tuple[Link, ...] = ()
    board_power: Power | None = None
    idle_power: Power | None = None
    max_temperature: Temperature | None = None  # chip temperature at which the clock falls
    rated_ambient: Temperature | None = None  # highest ambient temperature for which the device is made
    launch_overhead: Time | None = None
    price: PriceRate | None = None
    purchase: Price | None = None  # list price of the card, board, processor or smallest computer with it
    taught: Teaching | None = later(None)  # noqa: RUF009  (kernels are priced by the sheet's name)
    called: str = later("")

    def __post_init__(self) -> None:
        if not self.engines:
            raise SpecError("must list at least one engine", field="engines")
        order = [LEVELS.index(level.name) for level in self.memory]
        if order != sorted(set(order)):
            raise SpecError(
                f"must list memory levels in this order, each at most once: {', '.join(LEVELS)}", field="memory"
            )
        if not any(level.name == "dram" for level in self.memory):
            raise SpecError("must list the level dram, which is the device's own memory", field="memory")

    def __hash__(self) -> int:
        """Hash of the name only, because facts are mappings, which are not hashable."""
        return hash(self.name)

    @property
    def label(self) -> str:
        """Displayed name: that of the taught profile, else that of the cloud machine, else the sheet's name.

        If the user named a memory size, the sheet's name includes it.
        """
        if self.taught is None:
            return self.called or self.name
        part = "" if self.name == self.taught.base else self.name.partition(":")[2]
        return f"{self.taught.name}:{part}" if part else self.taught.name

    def peak(self, dtype: str, *, kind: str | None = None, part: str | None = None) -> float:
        """Dense operations per second of the fastest engine in ``dtype``.

        A system on a chip runs transformers on its GPU and CPU; its NPU counts only if ``part`` is ``npu`` or there is
        no other engine.

        Args:
            dtype: A number format.
            kind: ``matrix`` or ``vector`` to consider only such engines.
            part: ``gpu``, ``npu``, ``cpu`` or ``tpu`` to consider only that part of a system on a chip.

        Raises:
            Unsupported: No such engine has a published rate for ``dtype``.
        """
        if (rate := self.rate(dtype, kind=kind, part=part)) is not None:
            return rate
        name, engines = DType.named(dtype).value, self._engines(kind, part)
        listed = ", ".join(sorted({item.value for engine in engines for item in engine.dtypes()})) or "nothing"
        which = " ".join(word for word in (part, kind) if word)
        raise Unsupported(
            f"{self.name} has no {which + ' ' if which else ''}{name} throughput (it lists {listed}); if the "
            f"hardware supports it, pass your own device file with peak.{name} set in an engine"
        )

    def rate(self, *dtypes: str, kind: str | None = None, part: str | None = None) -> float | None:
        """Like :meth:`peak`, but for the first of ``dtypes`` with a published rate; None if none of them has one."""
        for dtype in map(DType.named, dtypes):
            rates = [rate for engine in self._engines(kind, part) if (rate := engine.rate(dtype)) is not None]
            if rates:
                return max(rates)
        return None

    def _engines(self, kind: str | None, part: str | None) -> list[Engine]:
        among = self.general_engines if part is None else self.engines
        return [e for e in among if kind in (None, e.kind) and part in (None, e.part)]

    @property
    def general_engines(self) -> tuple[Engine, ...]:
        """The engines that LLM runtimes use: all except an NPU, unless the chip has only an NPU."""
        others = tuple(engine for engine in self.engines if engine.part != "npu")
        return others if self.kind == "soc" and any(engine.dtypes() for engine in others) else self.engines

    @property
    def peak_flops_per_s(self) -> Mapping[DType, float]:
        """The dense peak in each number format for which an engine has a rate."""
        return _peaks(self)

    def tile(self, dtype: str) -> tuple[int, int, int]:
        """The size (m, n, k) of one matrix instruction or systolic array in ``dtype``.

        Raises:
            Unsupported: The device lists no tile for ``dtype``.
        """
        dtype = DType.named(dtype)
        for engine in self.engines:
            if dtype in engine.tile:
                return engine.tile[dtype].sizes
        raise self._absent(f"matrix tile for {dtype.value}", f"engines: tile.{dtype.value}")

    def level(self, name: str) -> MemoryLevel:
        """The memory level ``name``.

        Raises:
            Unsupported: The device lists no such level.
        """
        for level in self.memory:
            if level.name == name:
                return level
        listed = ", ".join(level.name for level in self.memory)
        raise Unsupported(
            f"{self.name} has no memory level {name} (it lists {listed}); if the hardware has one, pass your own "
            "device file that lists it under memory"
        )

    def capacity_bytes(self, name: str = "dram") -> float:
        """Size in bytes of a memory level; per SM or core if the level is ``per: unit``."""
        capacity = self.level(name).capacity
        if capacity is None:
            raise self._absent(f"capacity of {name}", f"memory: {name}.capacity")
        return capacity.number

    def bandwidth_bytes_per_s(self, name: str = "dram") -> float:
        """Bytes per second of all instances of a memory level: as stated, else computed from bytes per clock."""
        level = self.level(name)
        if level.bandwidth is not None:
            return level.bandwidth.number
        if level.bytes_per_clock is not None and self.clock is not None:
            instances = 1.0 if level.per == "device" else self.unit_count
            return level.bytes_per_clock.number * self.clock.number * instances
        raise self._absent(f"bandwidth of {name}", f"memory: {name}.bandwidth")

    @property
    def mem_capacity_bytes(self) -> float:
        """Size in bytes of the device's own memory."""
        return self.capacity_bytes()

    @property
    def usable_bytes(self) -> float:
        """Bytes of memory that a model may use: all, or on a Mac the share that macOS lets the GPU use by default."""
        held = self.mem_capacity_bytes
        if not (self.vendor == "Apple" and "(M" in self.architecture and any(e.part == "gpu" for e in self.engines)):
            return held
        return held * next(share for below, share in GPU_SHARES_OF_MACS if held < below)

    @property
    def known_bytes(self) -> float | None:
        """:attr:`usable_bytes`; None if the capacity is not published."""
        return None if self.level("dram").capacity is None else self.usable_bytes

    @property
    def memory_said(self) -> str:
        """The memory size as text: ``24 GB``, or for a Mac ``96 GB for its GPU (of 128 GB)``."""
        whole, usable = (units.show(size, "bytes") for size in (self.mem_capacity_bytes, self.usable_bytes))
        return whole if usable == whole else f"{usable} for its GPU (of {whole})"

    @property
    def mem_bandwidth_bytes_per_s(self) -> float:
        """Bandwidth in bytes per second of the device's own memory."""
        return self.bandwidth_bytes_per_s()

    @property
    def unit_count(self) -> float:
        """Number of SMs, CUs or cores."""
        return self._number("units", self.units)

    @property
    def clock_hz(self) -> float:
        """Boost clock in Hz."""
        return self._number("clock", self.clock)

    @property
    def board_power_w(self) -> float:
        """Power limit of the board or module in watts (TDP, TBP)."""
        return self._number("board_power", self.board_power)

    @property
    def idle_power_w(self) -> float:
        """Power of the idle device in watts."""
        return self._number("idle_power", self.idle_power)

    @property
    def launch_overhead_s(self) -> float:
        """Time in seconds to launch an empty kernel."""
        return self._number("launch_overhead", self.launch_overhead)

    @property
    def price_usd_per_s(self) -> float:
        """Public list price of renting one device, in dollars per second."""
        return self._number("price", self.price)

    def link(self, to: str) -> Link:
        """The fastest link to other devices, to the host, or to the network (``device``, ``host``, ``network``).

        Raises:
            Unsupported: No such link is listed.
        """
        found = [link for link in self.links if link.to == to]
        if not found:
            raise self._absent(f"link to {to}", f"links (an entry with to: {to})")
        return max(found, key=lambda link: link.bandwidth.number)

    def facts(self) -> Iterator[tuple[str, Fact | Tile]]:
        """Yields each fact with its path in the file, such as ``memory.dram.bandwidth``, in the file's order."""
        yield from _facts(self, "")

    def _number(self, key: str, fact: Fact | None) -> float:
        if fact is None:
            raise self._absent(key.replace("_", " "), key)
        return fact.number

    def _absent(self, what: str, where: str) -> Unsupported:
        return Unsupported(
            f"{self.name} lists no {what}: no published figure was found; if you know one, pass your own device "
            f"file with {where} set"
        )


@functools.lru_cache(maxsize=1024)
def _peaks(device: DeviceProfile) -> Mapping[DType, float]:
    return {dtype: rate for dtype in DType if (rate := device.rate(dtype)) is not None}


def _facts(value: object, path: str) -> Iterator[tuple[str, Fact | Tile]]:
    if isinstance(value, Fact | Tile):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _facts(item, f"{path}.{key}")
    elif isinstance(value, tuple):
        for item in value:
            if not isinstance(item, str):
                yield from _facts(item, f"{path}.{item.name}")
    elif isinstance(value, DeviceProfile | Engine | MemoryLevel | Link):
        for each in fields(value):
            yield from _facts(getattr(value, each.name), f"{path}.{each.name}" if path else each.name)


_BINNED = re.compile(r"[\s,(]+(\d+)[- ]?cores? gpu\)?$", re.IGNORECASE)


def load(name: str) -> DeviceProfile:
    """Loads a device. ``name`` is a sheet's name, an informal name (``4070``, ``m4max``), or the path of a YAML file.

    A taught machine (``chipwise teach``) is a data sheet with learnt corrections; ``name@2`` is its second version.
    Corrections from ONNX files are separate for each part of the chip. Corrections from language models apply only to
    the part on which the models ran.

    The name of a cloud machine such as ``p5.48xlarge`` (``hardware/instances.py``) loads one of the machine's chips.

    ``NAME:PART`` is one part of a system on a chip, such as ``apple-m3-max:cpu`` or ``snapdragon-8-elite:npu``: the
    same sheet with only the engines of that part. ``NAME:8-cores`` is the CPU with only eight cores in use.
    ``NAME:binned-30c`` (or ``NAME 30-core GPU``) is the chip as sold with 30 GPU cores; ``NAME:full`` is the whole
    chip.

    Raises:
        UnknownName: No device has this name, or the device has no such part.
        SpecError: The file does not follow the schema.
    """
    if name.lower().endswith((".yaml", ".yml")):
        return read(name)
    if name in ("here", "local"):
        raise InputError(
            f"{name} means this calibrated machine, not a data sheet; only chipwise estimate, explain and compare "
            "accept it as --device"
        )
    whole, _, part = _BINNED.sub(r":binned-\1c", name).partition(":")
    part = "" if part.strip().lower() == "full" else part
    key = typed.key_of(whole)
    stem = key if key in typed.stems() else typed.aliases().get(key)
    if stem is None:
        if (teaching := taught.load(name)) is not None:
            return replace(load(teaching.base), taught=teaching)
        if part and (teaching := taught.load(whole)) is not None:
            return _taught_part(teaching, part.strip().lower())
        if (machine := instances.named(whole)) is not None:
            return _rented(machine)
        try:
            return _of_typed(whole, part.strip().lower())
        except UnknownName as error:
            if close := difflib.get_close_matches(name.lower(), taught.names(), n=2):
                raise UnknownName("device", name, (), near=[*close, *error.near]) from None
            raise
    return _part(stem, part.strip().lower()) if part else _shipped(stem)


@functools.lru_cache(maxsize=1024)
def _of_typed(name: str, part: str) -> DeviceProfile:
    """The device for an informal name such as ``rtx 3060 12gb`` or ``MacBook Pro M4 Max 64GB``."""
    found = typed.meant(name, memory_held)
    sheet = _part(found.stem, part) if part else _shipped(found.stem)
    return sheet if found.memory_bytes is None else with_memory(sheet, found.memory_bytes)


def _taught_part(teaching: Teaching, part: str) -> DeviceProfile:
    """A taught machine, reduced to one part (such as ``gpu``) of its chip."""
    sheet = load(f"{teaching.base.partition(':')[0]}:{part}")
    return replace(sheet, taught=teaching if sheet.name == teaching.base else replace(teaching, rows=0))


def _rented(machine: instances.Instance) -> DeviceProfile:
    """The chip of a cloud machine, with its share of the machine's price."""
    price = None
    if machine.usd_per_h is not None:
        price = PriceRate(value=f"{machine.usd_per_h / machine.chips} USD/h", source=machine.source)
    return replace(_shipped(machine.chip), called=machine.name, price=price)


def memory_held(stem: str) -> float:
    """Memory size of a bundled device in bytes."""
    return _shipped(stem).mem_capacity_bytes


def said_of(name: str) -> str | None:
    """A note on the device that ``name`` means; None if the name needs no note.

    There is a note if the name is ambiguous, names a cloud machine, or states another memory size than the data sheet.

    Raises:
        UnknownName: No device has this name.
    """
    whole = _BINNED.sub("", name).partition(":")[0]
    key = typed.key_of(whole)
    if name.lower().endswith((".yaml", ".yml")) or key in typed.stems() or taught.load(name) or taught.load(whole):
        return None
    stem = typed.aliases().get(key)
    if stem is not None:
        others = [each for each in names() if each != stem and each.partition("-")[0] == key]
        return f"{name} is ambiguous: taken as {stem}, not {' or '.join(others)}" if others else None
    if (machine := instances.named(whole)) is not None:
        return machine.said
    found = typed.meant(whole, memory_held)
    if found.memory_bytes is None:
        return None
    held = memory_held(found.stem)
    return f"{name}: {found.stem} with {found.memory_bytes / 1e9:g} GB of memory instead of {held / 1e9:g} GB"


def with_memory(sheet: DeviceProfile, capacity_bytes: float) -> DeviceProfile:
    """A copy of ``sheet`` with a memory of ``capacity_bytes``."""
    size = Size(value=f"{capacity_bytes / 1e9:g} GB", source="as named by the user")
    levels = tuple(replace(level, capacity=size) if level.name == "dram" else level for level in sheet.memory)
    named = f"{sheet.name} {size.value}"
    return replace(sheet, title=f"{sheet.title}, {size.value}", memory=levels, called=named)


@functools.cache
def _part(stem: str, part: str) -> DeviceProfile:
    sheet = _shipped(stem)
    counted = re.fullmatch(r"(\d+)-cores?", part)
    if counted:
        return with_cores(sheet, int(counted[1]))
    binned = re.fullmatch(r"(?:binned-)?(\d+)-?(?:c|gpu-cores?)", part)
    if binned:
        return with_gpu_cores(sheet, int(binned[1]))
    found = with_part(sheet, part)
    if found is None:
        listed = sorted({engine.part for engine in sheet.engines})
        raise UnknownName("part", f"{stem}:{part}", [f"{stem}:{each}" for each in listed])
    return found


def with_part(sheet: DeviceProfile, part: str) -> DeviceProfile | None:
    """A copy of ``sheet`` with only the engines of one part; None if the chip has no such part."""
    engines = tuple(engine for engine in sheet.engines if engine.part == part)
    if not engines:
        return None
    if len(engines) == len(sheet.engines):
        return sheet
    first = engines[0]
    return replace(
        sheet,
        name=f"{sheet.name}:{part}",
        title=f"{sheet.title}, {part.upper()}",
        engines=engines,
        unit=first.unit or sheet.unit,
        units=first.units,
        clock=first.clock,
    )


def with_cores(sheet: DeviceProfile, count: int) -> DeviceProfile:
    """The CPU of ``sheet`` with only its ``count`` fastest cores in use, or all cores if it has fewer.

    The result has no power figures unless all cores are used, because the power of a subset is not published.

    Raises:
        InputError: ``count`` is not positive.
        UnknownName: The chip has no CPU.
    """
    if count < 1:
        raise InputError(f"{sheet.name}: the number of cores must be at least 1, not {count}")
    counted = [(each, each.units) for each in sheet.engines if each.part == "cpu" and each.units is not None]
    if not counted:
        raise UnknownName("part", f"{sheet.name}:cpu", sorted({engine.part for engine in sheet.engines}))
    left, kept = {"matrix": count, "vector": count}, []
    counted.sort(key=lambda each: -max((each[0].rate(str(d.value)) or 0.0) for d in each[0].dtypes()))
    for engine, cores in counted:
        taken = min(left[engine.kind], int(cores.number))
        left[engine.kind] -= taken
        if taken == cores.number:
            kept.append(engine)
        elif taken:
            some = Count(value=taken, source=f"{count} cores requested; {cores.source}")
            kept.append(replace(engine, units=some))
    used = max(count - each for each in left.values())
    whole = all(each in kept for each in sheet.engines)
    return replace(
        sheet,
        name=f"{sheet.name.partition(':')[0]}:{used}-core{'s' if used > 1 else ''}",
        title=f"{sheet.title}, {used} core{'s' if used > 1 else ''}",
        engines=tuple(kept),
        board_power=sheet.board_power if whole else None,  # the power of a subset of cores is not published
        idle_power=sheet.idle_power if whole else None,
    )


SLOWER_MEMORY = {("apple-m3-max", 30): "300 GB/s", ("apple-m4-max", 32): "410 GB/s", ("apple-m5-max", 32): "460 GB/s"}
"""Memory bandwidth by (chip, number of GPU cores), where it is lower with fewer cores (Apple's specifications)."""


def with_gpu_cores(sheet: DeviceProfile, count: int) -> DeviceProfile:
    """The chip as sold with only ``count`` GPU cores, and with slower memory if that version has it.

    Raises:
        InputError: ``sheet`` lists fewer than ``count`` GPU cores, or does not state their number.
    """
    gpus = [each for each in sheet.engines if each.part == "gpu" and each.units is not None]
    most = max((each.units.number for each in gpus if each.units is not None), default=0.0)
    if not 1 <= count <= most:
        raise InputError(f"{sheet.name}: GPU cores must be from 1 to {most:g}, as in its data sheet, not {count}")
    some = Count(value=count, source=f"{count} GPU cores requested")
    engines = tuple(
        replace(each, units=some, peak={name: _share_of(rate, count / most) for name, rate in each.peak.items()})
        if each in gpus
        else each
        for each in sheet.engines
    )
    memory, slower = sheet.memory, SLOWER_MEMORY.get((sheet.name, count))
    if slower is not None:
        fact = Bandwidth(value=slower, source="Apple technical specifications, the chip with fewer GPU cores")
        memory = tuple(replace(each, bandwidth=fact) if each.name == "dram" else each for each in memory)
    title = f"{sheet.title}, {count} GPU cores"
    whole = sheet.units is not None and sheet.units.number == most
    return replace(
        sheet,
        name=f"{sheet.name}:binned-{count}c",
        title=title,
        engines=engines,
        memory=memory,
        units=some if whole else sheet.units,
    )


def _share_of(rate: Rate, share: float) -> Rate:
    return Rate(value=f"{rate.number * share:.12g} FLOP/s", source=f"{rate.source}, in proportion to the cores")


def load_all() -> list[DeviceProfile]:
    """All bundled devices, sorted by name."""
    return [_shipped(name) for name in names()]


def read(path: str | Path) -> DeviceProfile:
    """The device that a YAML file describes.

    Raises:
        SpecError: The file is missing or does not follow the schema; the message names file and field.
    """
    return files.build(DeviceProfile, files.read_yaml(path), file=str(path))


@functools.cache
def _shipped(stem: str) -> DeviceProfile:
    return read(DATA / f"{stem}.yaml")

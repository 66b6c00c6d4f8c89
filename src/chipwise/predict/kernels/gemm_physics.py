"""A physical formula for the time of one matrix product, with constants that are the same for all devices.

The output is cut into tiles. Each streaming multiprocessor computes one tile at a time, in steps of 128 bytes along the
inner dimension K. A step lasts as long as the slowest of three parts: multiplying, loading operands from L2, and the
latency of the loop. If there are fewer tiles than multiprocessors, the tiles are split along K. The time of the tiles
and the time to move bytes overlap, so a p-norm combines the two. The launch and the kernel that quantises activations
are added. Of a few tile shapes, the fastest is used, because libraries choose it too.

References:
    NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.client_boards import bandwidth_factor, clock_factor
from chipwise.predict.kernels.gemm_formats import KernelPath
from chipwise.predict.kernels.times import LAUNCH_S, launch_s

TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))  # rows of m, columns of n
STEP_BYTES = 128.0  # bytes per step along K
CLOCK_HZ = 1.9e9  # reference clock of the constants given in clocks
FLOPS_PER_CLOCK = 4096.0  # 16-bit FLOPs per clock of the SM for which operand loading is stated
NARROWEST = 0.1  # least share of FLOPS_PER_CLOCK for the loading rate
JOULES_PER_FLOP = 0.7e-12  # energy that a unit of FLOPS_PER_CLOCK needs per 16-bit FLOP at its full clock
UNITS = 16.0  # fallback if no unit count is published
WIDEST_UNIT = 16384.0  # most 16-bit FLOPs per clock and unit; a larger systolic array counts as several units


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about a device and a kernel path that the formula needs."""

    units: float
    clock_hz: float
    bandwidth_bytes_per_s: float
    cache_bytes: float  # shared by all units; 0 if none is published
    launch_ratio: float  # time of an empty kernel relative to a GPU's
    power_ratio: float  # board power / power needed at the peak rate, see _power_ratio
    least_rows: int  # rows that one instruction multiplies: 16 for matrix engines, 1 for vector engines
    path: KernelPath

    @classmethod
    def of(cls, device: DeviceProfile, path: KernelPath) -> Machine:
        """Reads the facts from a data sheet. If they are unknown, 16 units and a clock of 1.9 GHz are assumed."""
        units, clock_hz = units_and_clock(device)
        faster, sheet = clock_factor(device), path.peak_flops_per_s
        path = replace(path, peak_flops_per_s=faster * path.peak_flops_per_s)
        clock_hz *= faster
        width = path.peak_flops_per_s * path.activation_bytes / 2 / clock_hz
        matrix = any(e.kind == "matrix" and e.rate(path.multiplied_in) == sheet for e in device.engines)
        return cls(
            units=max(units, width / WIDEST_UNIT),
            clock_hz=clock_hz,
            bandwidth_bytes_per_s=bandwidth_factor(device) * device.mem_bandwidth_bytes_per_s,
            cache_bytes=_cache_bytes(device),
            launch_ratio=launch_s(device) / LAUNCH_S["gpu"],
            power_ratio=_power_ratio(device, path, units * clock_hz),
            least_rows=TILES[0][0] if matrix else 1,
            path=path,
        )


def _cache_bytes(device: DeviceProfile) -> float:
    shared = (level.capacity for level in device.memory if level.name in ("l2", "l3") and level.per == "device")
    return max((capacity.number for capacity in shared if capacity is not None), default=0.0)


def _power_ratio(device: DeviceProfile, path: KernelPath, unit_clocks_per_s: float) -> float:
    """The board's power divided by the power that the path needs at its peak rate, from 0.2 to 1.

    It is 1 if the board's power is unknown. The energy needed per FLOP is proportional to the bytes of the number
    format. Wider units spread the cost of moving operands over more FLOPs, so the energy per FLOP falls with the square
    root of the FLOPs per clock.
    """
    if device.board_power is None:
        return 1.0
    wide = device.rate("bf16", "fp16") or path.peak_flops_per_s
    flops_per_s = path.peak_flops_per_s * path.activation_bytes / 2
    width = wide / unit_clocks_per_s / FLOPS_PER_CLOCK
    return float(np.clip(device.board_power.number / flops_per_s / JOULES_PER_FLOP * np.sqrt(width), 0.2, 1.0))


def units_and_clock(device: DeviceProfile) -> tuple[float, float]:
    """Number of units and clock in Hz from the data sheet, or the fallback values if they are not published."""
    units = device.units.number if device.units is not None else UNITS
    return units, device.clock.number if device.clock is not None else CLOCK_HZ


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one matrix product, in total and by part."""

    total_s: Float64Array
    tiles_s: Float64Array
    memory_s: Float64Array
    resident: Float64Array  # share of the bytes that are still in a cache from the previous call
    quantise_s: Float64Array
    launch_s: Float64Array
    bytes: Float64Array


SHARED: Mapping[str, tuple[float, float]] = {
    "compute_share": (np.log(0.85), 0.3),  # log of the share of the dense peak inside a step
    "power": (0.4, 0.05),  # clocks fall with this power of the power ratio, expected from 1/3 to 1/2
    "memory_share": (np.log(0.85), 0.2),  # log of the share of the bandwidth
    "cache_share": (np.log(1 / 6), 0.3),  # log share of the cache in which one call's operands stay cached
    "cache_sharp": (np.log(4.0), 0.3),  # log of the sharpness of that limit
    "cache": (np.log(20.0), 0.4),  # log bytes per clock and unit from the cache
    "prologue": (np.log(2000.0), 1.0),  # log clocks per tile in addition to its steps
    "step": (np.log(200.0), 1.0),  # log of the least clocks of a step
    "feed": (np.log(64.0), 1.0),  # log bytes per clock into an SM of FLOPS_PER_CLOCK
    "feed_power": (0.7, 0.15),  # exponent with which an SM's loading rate grows with its FLOPs per clock
    "wave": (-1.0, 1.0),  # logit of how much a partly filled wave costs relative to a full one
    "reduce": (np.log(1500.0), 1.0),  # log clocks for each doubling of the split along K
    "overlap": (np.log(2.0), 0.5),  # log of p in the norm
    "launch_clock": (0.25, 0.05),  # exponent of the clock in launch, step and prologue
    "step_clock": (0.5, 0.15),
    "prologue_clock": (0.5, 0.15),
    "quantise_row": (np.log(300.0), 1.0),  # log clocks for 512 values of a row
    "quantise_bytes": (np.log(0.5), 1.0),  # log of the factor on bytes over bandwidth
}
"""Constants that apply to all matrix products, each with its prior mean and prior standard deviation."""

OWN: Mapping[str, tuple[float, float]] = {
    "launch": (np.log(3e-6), 2.0),  # log seconds
    "compute_share": (0.0, 0.1),
    "quantise_row": (0.0, 2.0),
    "quantise_bytes": (0.0, 2.0),
}
"""Constants of one stack and kernel path, each with its prior: the launch, and offsets that are added to ``SHARED``."""


def parts(
    m: Float64Array,
    n: Float64Array,
    k: Float64Array,
    machine: Machine,
    shared: Mapping[str, float],
    own: Mapping[str, float],
    *,
    slower: Float64Array | float = 1.0,
) -> Parts:
    """Seconds of multiplying an (m, k) matrix by a (k, n) matrix; sizes are float arrays of one shape.

    Args:
        m: Rows of the activations.
        n: Columns of the weights.
        k: The inner dimension.
        machine: The device and kernel path.
        shared: Values of the constants in ``SHARED``, by name.
        own: Values of the constants in ``OWN``, by name.
        slower: Factor on the time of tiles for misaligned rows.
    """
    path, clock = machine.path, machine.clock_hz / CLOCK_HZ
    steps = np.ceil(k * (max(path.weight_bytes, path.activation_bytes) / STEP_BYTES))
    step_k = STEP_BYTES / max(path.weight_bytes, path.activation_bytes)
    share = np.exp(shared["compute_share"] + own["compute_share"]) * machine.power_ratio ** shared["power"]
    unit_flops_per_s = path.peak_flops_per_s * share / machine.units
    width = path.peak_flops_per_s * path.activation_bytes / 2 / machine.units / machine.clock_hz / FLOPS_PER_CLOCK
    feed_bytes_per_s = np.exp(shared["feed"]) * machine.clock_hz * max(width, NARROWEST) ** shared["feed_power"]
    step_s = np.exp(shared["step"]) / CLOCK_HZ * clock ** -shared["step_clock"]
    prologue_s = np.exp(shared["prologue"]) / CLOCK_HZ * clock ** -shared["prologue_clock"]
    reduce_s = np.exp(shared["reduce"]) / CLOCK_HZ * clock ** -shared["prologue_clock"]
    whole = 1 / (1 + np.exp(-shared["wave"]))
    most_split = np.maximum(1.0, steps / 4)
    best = np.full(np.shape(m), np.inf)
    for rows, columns in ((machine.least_rows, TILES[0][1]), *TILES[1:]):
        tiles = np.ceil(m * (1 / rows)) * np.ceil(n * (1 / columns))
        split = np.clip(np.floor(machine.units / tiles), 1.0, most_split)
        waves = tiles * split / machine.units
        waves = np.maximum((1 - whole) * waves + whole * np.ceil(waves), 1.0)
        one_s = max(
            2 * rows * columns * step_k / unit_flops_per_s, (rows + columns) * STEP_BYTES / feed_bytes_per_s, step_s
        )
        best = np.minimum(best, waves * (prologue_s + steps / split * one_s) + reduce_s * np.log2(split))
    best = best * slower
    moved = m * k * path.activation_bytes + n * k * path.weight_bytes + m * n * path.output_bytes
    dram_bytes_per_s = machine.bandwidth_bytes_per_s * np.exp(shared["memory_share"])
    cache_bytes_per_s = max(dram_bytes_per_s, machine.units * machine.clock_hz * np.exp(shared["cache"]))
    room = machine.cache_bytes * np.exp(shared["cache_share"])
    resident = 1 / (1 + (moved / room) ** np.exp(shared["cache_sharp"])) if room > 0 else np.zeros_like(moved)
    memory_s = moved * ((1 - resident) / dram_bytes_per_s + resident / cache_bytes_per_s)
    launch = np.exp(own["launch"]) * machine.launch_ratio * clock ** -shared["launch_clock"]
    quantise_s = np.zeros_like(moved)
    if path.quantises:
        row_s = np.exp(shared["quantise_row"] + own["quantise_row"]) / (machine.clock_hz * machine.units)
        byte_s = np.exp(shared["quantise_bytes"] + own["quantise_bytes"]) / machine.bandwidth_bytes_per_s
        quantise_s = m * np.ceil(k / 512) * row_s + m * k * (path.source_bytes + path.activation_bytes) * byte_s
    power = np.exp(shared["overlap"])
    high, low = np.maximum(best, memory_s), np.minimum(best, memory_s)
    overlapped = high * (1 + (low / high) ** power) ** (1 / power)
    return Parts(
        total_s=launch + quantise_s + overlapped,
        tiles_s=best,
        memory_s=memory_s,
        resident=resident,
        quantise_s=quantise_s,
        launch_s=np.full_like(moved, launch),
        bytes=moved,
    )

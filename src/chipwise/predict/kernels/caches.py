"""Bytes that stay in a cache from one pass to the next, on any chip.

Kernels are priced from memory first. A pass whose bytes fit a cache saves a share of the time for which its kernels
wait for memory, ``KernelTimes.reading_s``:

    saved = reading · (1 - B(memory) / B(working set)),    1 / B(w) = Σ kept(w) / B(level) + rest / B(memory)

The working set is all bytes that the pass moves, so a pass over many tokens counts them too often rather than too
rarely. CPU cores reach their caches as in ``cores``; a GPU's caches are as fast as its sheet states, or as measured on
a chip of its architecture, per unit and clock. A level whose rate is known from neither is left out.

References:
    RRZE-HPC/gpu-benches 1038c5d (2025-02-11), ``gpu-l2-cache``: read bandwidth by working set, measured on L40, H100
    PCIe, H200, A100, MI100 and MI210. The cached share falls from nine to one tenth between 0.87 and 1.15 capacities,
    on A100 and MI210 more slowly.
    ai-dynamo/aiconfigurator 0.12.0, collectors of kernels: a kernel is timed by calls on six copies of its operands.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES
from chipwise.predict.kernels import cores
from chipwise.predict.kernels.cores import Cache
from chipwise.predict.kernels.local import STACKS
from chipwise.predict.kernels.local_engines import part_of, read_bytes_per_s
from chipwise.predict.kernels.times import KernelTimes

BYTES_PER_CLOCK = {"Ada Lovelace": 14.7, "Hopper": 36.0, "CDNA": 15.1}
"""Measured bytes per clock and unit from the L2 cache: 5.2 TB/s on an L40, 6.95 on an H100 PCIe, 9.8 on an H200, 2.72
on an MI100."""
STEEPNESS = 16.0  # of the cached share around a GPU cache's capacity
LEAST = 1e-3  # saved share below which a pass counts as read from memory
COPIES = 6.0
"""Operands that took turns when the kernels of serving engines were timed: those of a small kernel stayed in the cache,
so its fitted time is already that of a read from there."""


def caches_of(device: DeviceProfile, stack: str) -> list[Cache]:
    """The caches through which ``stack`` reads on ``device``, smallest first, if their rates are known."""
    part = _part(device, stack)
    if part == "cpu":
        try:
            return cores.caches_of(device, whole=stack != CORES)
        except Unsupported:
            return []
    found = []
    for level in device.memory:
        each = BYTES_PER_CLOCK.get(device.architecture) if level.name == "l2" else None
        if part != "gpu" or level.name not in ("l2", "l3") or level.capacity is None or level.per == "unit":
            continue
        if level.bandwidth is not None or level.bytes_per_clock is not None:
            found.append(Cache(level.name, level.capacity.number, device.bandwidth_bytes_per_s(level.name)))
        elif each is not None and device.clock is not None and device.units is not None:
            rate = each * device.clock.number * device.units.number
            found.append(Cache(level.name, level.capacity.number, rate))
    return found


def bandwidth_bytes_per_s(working_set_bytes: Float64Array, device: DeviceProfile, stack: str) -> Float64Array:
    """Bytes per second of passes that repeatedly read ``working_set_bytes``, any shape."""
    steepness = cores.STEEPNESS if _part(device, stack) == "cpu" else STEEPNESS
    left, seconds_a_byte = np.ones(working_set_bytes.shape), np.zeros(working_set_bytes.shape)
    memory = memory_bytes_per_s(device, stack)
    for cache in caches_of(device, stack):
        share = np.minimum(_kept(working_set_bytes, cache.capacity_bytes, steepness), left)
        seconds_a_byte = seconds_a_byte + share / max(cache.bytes_per_s, memory)
        left = left - share
    found: Float64Array = 1 / (seconds_a_byte + left / memory)
    return found


def reading_s(times: KernelTimes, device: DeviceProfile, stack: str) -> Float64Array:
    """Seconds of one call that infinitely fast memory would save, shape of ``times``.

    Kernel models of ``cores`` and ``local`` state them. Others leave them open: there it is the least time of the bytes
    that come from memory, at most what launch and arithmetic leave.
    """
    if times.reading_s is not None:
        return times.reading_s
    spare = np.maximum(times.latency_s - times.launch_s - times.compute_s, 0.0)
    capacity = max((cache.capacity_bytes for cache in caches_of(device, stack)), default=0.0)
    moved = COPIES * times.memory_s * device.mem_bandwidth_bytes_per_s
    found: Float64Array = np.minimum(times.memory_s, spare) * (1 - _kept(moved, capacity, STEEPNESS))
    return found


def _kept(working_set_bytes: Float64Array, capacity_bytes: float, steepness: float) -> Float64Array:
    """Share of the bytes that a cache keeps."""
    if not capacity_bytes:
        return np.zeros_like(working_set_bytes)
    found: Float64Array = 1 / (1 + (working_set_bytes / capacity_bytes) ** steepness)
    return found


def memory_bytes_per_s(device: DeviceProfile, stack: str) -> float:
    """Bandwidth of memory for ``stack``, to which its caches compare."""
    if stack == CORES:
        return cores.memory_bytes_per_s(device)
    return read_bytes_per_s(device, _part(device, stack))


def saved_share(memory_s: Float64Array, device: DeviceProfile, stack: str) -> Float64Array:
    """Share of the reading time that a pass saves, (n,).

    Args:
        memory_s: Bytes of all kernels of the pass divided by the sheet's memory bandwidth, (n,).
        device: The data sheet.
        stack: The runtime's stack.
    """
    moved = memory_s * device.mem_bandwidth_bytes_per_s
    share = 1 - memory_bytes_per_s(device, stack) / bandwidth_bytes_per_s(moved, device, stack)
    found: Float64Array = np.where(share > LEAST, share, 0.0)
    return found


def _part(device: DeviceProfile, stack: str) -> str:
    if stack == CORES:
        return "cpu"
    if stack in STACKS:
        return part_of(device, stack)
    return next((engine.part for engine in device.engines if engine.part != "cpu"), "cpu")

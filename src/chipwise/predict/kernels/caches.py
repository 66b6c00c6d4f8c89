"""Time saved by caches that keep the bytes of one pass until the next pass, on any chip.

Kernel models first assume that all bytes come from memory. A pass whose bytes fit in a cache saves a share of the time
for which its kernels wait for memory, ``KernelTimes.reading_s``:

    saved = reading · (1 - B(memory) / B(working set)),    1 / B(w) = Σ kept(w) / B(level) + rest / B(memory)

B is a bandwidth, kept(w) is the share of a working set w that a cache level keeps, and rest is the share that no level
keeps. The working set is assumed to be all bytes that the pass moves, which overestimates it for passes over many
tokens. ``cores`` describes the caches of CPU cores. The bandwidth of a GPU's cache comes from its data sheet, or else
from a measurement per unit and clock on a chip of its architecture. A cache level without either figure is left out.

References:
    RRZE-HPC/gpu-benches 1038c5d (2025-02-11), ``gpu-l2-cache``: read bandwidth by working set, measured on L40, H100
    PCIe, H200, A100, MI100 and MI210. The cached share falls from 90 % to 10 % as the working set grows from
    0.87 to 1.15 times the capacity; on A100 and MI210 it falls more slowly.
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
"""Bytes that a unit reads from the L2 cache per clock, computed from measurements: 5.2 TB/s on an L40, 6.95 on an H100
PCIe, 9.8 on an H200, and 2.72 on an MI100."""
STEEPNESS = 16.0  # how steeply the cached share falls around a GPU cache's capacity
LEAST = 1e-3  # saved share below which a pass counts as read from memory
COPIES = 6.0
"""When the kernels of serving engines were timed, successive calls used six copies of the operands in turn. All copies
of a small kernel's operands stayed in the cache, so its fitted time already assumes reading from the cache."""


def caches_of(device: DeviceProfile, stack: str) -> list[Cache]:
    """The caches of known bandwidth through which ``stack`` reads on ``device``, smallest first."""
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
    """Bandwidth at which passes read, if each pass reads the same ``working_set_bytes``; arrays of any shape."""
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
    """For each size in ``times``, the seconds that infinitely fast memory would save in one kernel call.

    The kernel models of ``cores`` and ``local`` predict these seconds. For other kernel models, they are computed from
    the smaller of two times: the time that memory needs for the call's bytes, and the call's time without launch and
    arithmetic. This smaller time is then reduced by the share of the bytes that a cache already held while the kernel
    was timed.
    """
    if times.reading_s is not None:
        return times.reading_s
    spare = np.maximum(times.latency_s - times.launch_s - times.compute_s, 0.0)
    capacity = max((cache.capacity_bytes for cache in caches_of(device, stack)), default=0.0)
    moved = COPIES * times.memory_s * device.mem_bandwidth_bytes_per_s
    found: Float64Array = np.minimum(times.memory_s, spare) * (1 - _kept(moved, capacity, STEEPNESS))
    return found


def _kept(working_set_bytes: Float64Array, capacity_bytes: float, steepness: float) -> Float64Array:
    """Share of the working set that a cache keeps from one pass to the next."""
    if not capacity_bytes:
        return np.zeros_like(working_set_bytes)
    found: Float64Array = 1 / (1 + (working_set_bytes / capacity_bytes) ** steepness)
    return found


def memory_bytes_per_s(device: DeviceProfile, stack: str) -> float:
    """Memory bandwidth that ``stack`` achieves on ``device``; the bandwidth of caches is compared with it."""
    if stack == CORES:
        return cores.memory_bytes_per_s(device)
    return read_bytes_per_s(device, _part(device, stack))


def saved_share(memory_s: Float64Array, device: DeviceProfile, stack: str) -> Float64Array:
    """Share of the time spent waiting for memory that caches save in each of n passes, (n,).

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

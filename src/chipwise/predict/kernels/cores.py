"""Times of ONNX Runtime's kernels on CPU cores: a cost per graph node, arithmetic at a share of the peak, and bytes.

    t = node + FLOPs / (share · P) + bytes / B(working set)

P is the peak rate of the computing cores' vector units: the FP32 rate, or for int8 weights the int8 rate. B is the
bandwidth of the memory or cache that holds the bytes of a whole pass between passes. A model of a few megabytes stays
in the last-level cache, which a core reads several times faster than memory. ``times`` predicts a kernel whose bytes
come from memory; ``caches`` then subtracts what a pass saves if its bytes fit in caches.

The constants are relative to the data sheet's base clock. They were adjusted to runs on one core of a Sapphire Rapids
server: ONNX Runtime 1.31.1, two sets of models of one to thirty megabytes (86 and 20 models). Two constants were chosen
after measuring GPT-2 on a core of a Zen 5 server (``benchmarks/claims-cpu.csv``), so that measurement is not an
independent check. Runs with several threads were never measured.

References:
    Intel 64 and IA-32 Architectures Optimization Reference Manual (caches of a core); Fog, Instruction tables.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.engines import Engine
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.predict.kernels.times import KernelTimes, together

NODE_CLOCKS = 4.5e3  # clocks per node of a graph: dispatch, shapes, memory allocation
NODES = {"attention": 2.0, "conv": 1.5, "sample": 0.5}  # overhead of a kernel / overhead of a node
INT8_NODES = 1.6  # the same for an int8 matrix product, whose input is quantised by a separate node
SHARE = {"matmul": 1.5, "attention": 0.04, "conv": 0.015}  # share of the peak at the base clock that kernels reach
SHARE_ELSEWHERE = 0.05
INT8_FEW = 0.15  # share of the int8 rate for a single row
INT4_FEW, INT4_MANY = 0.3, 0.35  # shares for 4-bit weights: for one row, and for many
CORE_BYTES_PER_CLOCK = {"Intel": 15.0, "AMD": 24.0}  # one core's rate from the shared last-level cache
CORE_BYTES_PER_CLOCK_ELSEWHERE = 8.0
PRIVATE_SHARE = 0.5  # achieved share of the published bytes per clock of a core's private cache
PRIVATE_BYTES_PER_CLOCK = 32.0  # fallback if not published
SHARED_BY = {"AMD": 8}  # number of cores that share one slice of the last-level cache
CORE_MEMORY_BYTES_PER_S = {"Intel": 14e9, "AMD": 26e9}  # memory bandwidth of one core: misses in flight / latency
CORE_MEMORY_ELSEWHERE = {"cpu": 14e9, "soc": 4e9}
MEMORY_SHARE = 0.8  # share of the sheet's bandwidth for all cores together
SYNC_CLOCKS = 4e3  # clocks to start and join threads of one kernel, per doubling of the threads
LOG_HALFWIDTH = 0.8
STEEPNESS = 2.0  # how steeply the cached share of a working set falls around the cache's capacity


def times(op: Op, device: DeviceProfile, *, stack: str = "cores", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` (its sizes may be arrays) if all its bytes come from memory.

    Raises:
        Unsupported: The device lists no rate or clock of CPU cores.
    """
    work = op.work()
    flops, moved = together(work.flops, work.bytes)
    engine, clock, threads = vector_engine(device), clock_hz(device), threads_of(device)
    node_s = nodes_of(op) * (NODE_CLOCKS + SYNC_CLOCKS * np.log2(threads)) / clock
    compute_s = flops / rate_of(op, engine, device)
    memory_s, reading_s = moved / device.mem_bandwidth_bytes_per_s, moved / memory_bytes_per_s(device)
    return KernelTimes(
        latency_s=node_s + compute_s + reading_s,
        log_halfwidth=np.full(moved.shape, LOG_HALFWIDTH),
        compute_s=np.minimum(flops / _peak(engine, device), compute_s),
        memory_s=memory_s,
        launch_s=np.full(moved.shape, node_s),
        situation="unseen",
        reading_s=reading_s,
    )


class Cache(NamedTuple):
    """A cache level, with its total capacity and bandwidth over all computing cores."""

    name: str
    capacity_bytes: float
    bytes_per_s: float


def caches_of(device: DeviceProfile, *, whole: bool = False) -> list[Cache]:
    """The L2 cache and the last-level cache, in this order, if the data sheet lists them.

    Capacity and bandwidth are totals over the cores of the fastest kind or, with ``whole``, over all cores.
    """
    kinds = [each for each in vector_engines(device) if whole or each is vector_engine(device)]
    threads = sum(_units(each) for each in kinds)
    clocks_per_s = sum(_units(each) * _clock_hz(each, device) for each in kinds)
    found = []
    for level in device.memory:
        if level.name not in ("l2", "l3") or level.capacity is None:
            continue
        if level.per == "unit":
            stated = level.bytes_per_clock
            each = PRIVATE_SHARE * stated.number if stated else PRIVATE_BYTES_PER_CLOCK
            capacity = level.capacity.number * threads
        else:
            each = CORE_BYTES_PER_CLOCK.get(device.vendor, CORE_BYTES_PER_CLOCK_ELSEWHERE)
            capacity = level.capacity.number * _reached(device, threads)
        found.append(Cache(level.name, capacity, each * clocks_per_s))
    return found


def _reached(device: DeviceProfile, threads: float) -> float:
    """Share of the last-level cache that ``threads`` cores can access."""
    pieces = SHARED_BY.get(device.vendor)
    whole = device.units.number if device.units else threads
    if pieces is None or whole <= pieces:
        return 1.0
    return min(1.0, float(np.ceil(threads / pieces)) * pieces / whole)


def memory_bytes_per_s(device: DeviceProfile) -> float:
    """Memory bandwidth that the computing cores achieve together."""
    elsewhere = CORE_MEMORY_ELSEWHERE.get(device.kind, CORE_MEMORY_ELSEWHERE["cpu"])
    each = CORE_MEMORY_BYTES_PER_S.get(device.vendor, elsewhere)
    return min(MEMORY_SHARE * device.mem_bandwidth_bytes_per_s, each * threads_of(device))


def vector_engine(device: DeviceProfile) -> Engine:
    """The vector units of the CPU's cores. If there are several kinds of cores, the fastest kind is used.

    Raises:
        Unsupported: The sheet lists no vector units, or no FP32 rate for them.
    """
    among = vector_engines(device)
    if not among:
        raise Unsupported(
            f"{device.name} lists no FP32 rate of its CPU cores; pass a device file of your own with an engine of part "
            "cpu that has fma_per_clock.fp32"
        )
    return max(among, key=lambda each: each.rate("fp32") or 0.0)


def vector_engines(device: DeviceProfile) -> list[Engine]:
    """The vector units of each kind of core; kinds without an FP32 rate are left out."""
    return [each for each in device.engines if each.part == "cpu" and each.kind == "vector" and each.rate("fp32")]


def threads_of(device: DeviceProfile) -> float:
    """Number of computing cores, which run one thread each; 1 if the data sheet states no number."""
    return _units(vector_engine(device))


def _units(engine: Engine) -> float:
    return engine.units.number if engine.units is not None else 1.0


def clock_hz(device: DeviceProfile) -> float:
    """Base clock of the cores.

    Raises:
        Unsupported: The sheet lists no clock.
    """
    return _clock_hz(vector_engine(device), device)


def _clock_hz(engine: Engine, device: DeviceProfile) -> float:
    return engine.clock.number if engine.clock is not None else device.clock_hz


def nodes_of(op: Op) -> float:
    """Overhead of an operator's kernel, as a multiple of the overhead of one graph node."""
    if isinstance(op, Matmul):
        return INT8_NODES if weight_format(op.weights).dtype.value == "int8" else 1.0
    return NODES.get(op.kind, 1.0)


def rate_of(op: Op, engine: Engine, device: DeviceProfile) -> Float64Array | float:
    """Operations per second that a kernel achieves."""
    peak = _peak(engine, device)
    if not isinstance(op, Matmul):
        return SHARE.get(op.kind, SHARE_ELSEWHERE) * peak
    stored = weight_format(op.weights).dtype.value
    narrow = engine.rate("int8") or 2 * peak
    few = np.asarray(op.m) == 1
    if stored == "int8":
        return narrow * np.where(few, INT8_FEW, SHARE["matmul"])
    if stored == "int4":
        return narrow * np.where(few, INT4_FEW, INT4_MANY)
    return SHARE["matmul"] * peak


def _peak(engine: Engine, device: DeviceProfile) -> float:
    found = engine.rate("fp32")
    if found is None:
        raise Unsupported(f"{device.name} lists no FP32 rate of its vector units; pass a device file that has one")
    return found

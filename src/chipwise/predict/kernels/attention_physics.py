"""A physical formula for fused attention: it counts the blocks of scores, the thread blocks, and the memory they read.

There are two schedules. *Context*: a thread block processes ``TILE`` query rows of one head and loops over the keys
that are not masked. *Decode*: a thread block processes all queries that share a key head, for one span of keys. The
spans are chosen to occupy the whole chip, and a second step combines their results. In both schedules, keys are read
from the last-level cache if all keys fit in it.

References:
    Dao 2023, FlashAttention-2, arXiv:2307.08691, section 3.2: one thread block per query tile and head.
    Dao, Haziza, Massa and Sizov 2023, Flash-Decoding: keys are also split among thread blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import dtype_of
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp
from chipwise.predict.kernels import analytic
from chipwise.predict.kernels.client_boards import bandwidth_factor, clock_factor
from chipwise.predict.kernels.times import together

TILE = 128.0  # query rows per thread block, and keys per step, in the context schedule
ROWS = 16.0  # fewest query rows of a matrix instruction
BLOCK_BYTES = 80 * 1024.0  # shared memory per thread block: 64 queries, 128 keys and values of size 128 in bf16
UNIT_BYTES_PER_CLOCK = 64.0  # bytes per clock that an SM, CU or core reads from the last-level cache
# Fallback for the last-level cache's size: bytes that memory delivers in this time (A100: 20 µs, H100: 16).
CACHE_SECONDS = 16e-6
UNIT_BANDWIDTH = 25e9  # fallback for the number of units: memory bandwidth per unit
CLOCK_HZ = 1.9e9  # fallback for the clock

SIZES = ("batch", "queries", "past", "heads", "kv_heads", "head_size", "span", "stored")
Constants = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Facts of a device that the formulas need. Constants of this module replace unpublished facts."""

    bandwidth: float  # bytes per second of the device's own memory
    units: float
    clock_hz: float
    cache_bytes: float  # last-level cache
    resident_blocks: float  # thread blocks that a unit holds at once
    flops_per_s: float  # dense, in the number format of the matrix products

    @classmethod
    def of(cls, device: DeviceProfile, activations: str) -> Chip:
        """The facts of ``device`` for matrix products in the number format ``activations``.

        Raises:
            Unsupported: The device has no rate for the format.
        """
        bandwidth, faster = device.mem_bandwidth_bytes_per_s, clock_factor(device)
        cache = 0.0
        for level in device.memory:
            if level.name in ("l2", "l3") and level.capacity is not None:
                number = device.units.number if level.per == "unit" and device.units is not None else 1.0
                cache = max(cache, level.capacity.number * number)
        fast = [level.capacity.number for level in device.memory if level.name == "l1" and level.capacity is not None]
        return cls(
            bandwidth=bandwidth_factor(device) * bandwidth,
            resident_blocks=max(np.floor(fast[0] / BLOCK_BYTES), 1.0) if fast else 1.0,
            units=device.units.number if device.units is not None else max(bandwidth / UNIT_BANDWIDTH, 1.0),
            clock_hz=faster * (device.clock.number if device.clock is not None else CLOCK_HZ),
            cache_bytes=cache or CACHE_SECONDS * bandwidth,
            flops_per_s=faster * _rate(device, activations),
        )


def _rate(device: DeviceProfile, activations: str) -> float:
    """Rate of matrix products; a format without a rate is computed in the next wider format that has one."""
    wider = {"fp8": ("fp8", "bf16", "fp16"), "bf16": ("bf16", "fp16")}.get(activations, (activations,))
    return device.rate(*wider) or analytic.peak(device, activations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Sizes of attention calls, as arrays of one shape.

    ``span`` is the largest number of keys that a query attends to; 0 means all keys.
    """

    batch: Float64Array
    queries: Float64Array
    past: Float64Array
    heads: Float64Array
    kv_heads: Float64Array
    head_size: Float64Array
    span: Float64Array
    stored: Float64Array  # cached vectors of head_size per position and key head: usually a key and a value
    causal: bool
    value_bytes: float  # bytes per value of a query or result
    cache_bytes: float  # bytes per value of a cached key or value

    @classmethod
    def of(cls, op: AttentionOp) -> Call:
        """The sizes of ``op``; attention within chunks is treated as a window of the chunk's length."""
        span = op.window if op.window is not None else op.chunk if op.chunk is not None else 0
        sizes = together(op.batch, op.query_tokens, op.past_tokens, op.heads, op.kv_heads, op.head_size, span, 2)
        return cls(
            **dict(zip(SIZES, sizes, strict=True)),
            causal=op.causal and not op.cross,
            value_bytes=dtype_of(op.activations).size_bytes,
            cache_bytes=dtype_of(op.cache).size_bytes,
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> Call:
        """Only the calls in the mask ``rows``, as arrays with one axis."""
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in SIZES})

    @property
    def keys(self) -> Float64Array:
        """Number of keys that the last query attends to."""
        every = self.past + self.queries
        return np.where(self.span > 0, np.minimum(every, self.span), every)

    @property
    def kv_bytes(self) -> Float64Array:
        """Bytes of keys and values that are read, where a byte that is read several times counts once."""
        seen = np.minimum(self.past + self.queries, self.keys + self.queries - 1)
        return self.stored * self.batch * seen * self.kv_heads * self.head_size * self.cache_bytes

    @property
    def io_bytes(self) -> Float64Array:
        """Bytes of queries read and results written."""
        return 2 * self.batch * self.queries * self.heads * self.head_size * self.value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The work of a schedule. Fields in seconds assume published rates unless stated otherwise."""

    compute_s: Float64Array  # padded matrix products over the dense peak, spread evenly over the units
    longest_s: Float64Array  # matrix products of the thread block with the most work, on one unit
    dram_s: Float64Array  # bytes of keys, values, queries and results over the memory's bandwidth
    resident: Float64Array  # bytes read over the capacity of the last-level cache
    cache_s: Float64Array  # bytes that thread blocks read from the cache, at UNIT_BYTES_PER_CLOCK per unit
    blocks: Float64Array  # waves: thread blocks per unit over those that a unit holds at once
    steps: Float64Array  # keys in the loop of one thread block, if keys are not split
    clock_s: Float64Array  # seconds per clock


def context(call: Call, chip: Chip) -> Parts:
    """Work of the context schedule: each thread block processes ``TILE`` queries of one head."""
    tiles = np.ceil(call.queries / TILE)
    every = np.ceil((call.past + call.queries) / TILE)
    first = np.ceil((call.past + 1) / TILE) if call.causal else every
    reach = np.where(call.span > 0, np.minimum(np.ceil(call.span / TILE) + 1, every), every)
    # Query tile i loops over min(first + i, reach) blocks of keys.
    growing = np.clip(reach - first, 0, tiles)
    walked = growing * first + growing * (growing - 1) / 2 + (tiles - growing) * np.minimum(reach, every)
    flops = 4 * TILE * TILE * call.head_size
    longest = np.minimum(first + tiles - 1, reach)
    grid = call.batch * call.heads
    moved = call.kv_bytes + call.io_bytes
    return Parts(
        compute_s=grid * walked * flops / chip.flops_per_s,
        longest_s=longest * flops * chip.units / chip.flops_per_s,
        dram_s=moved / chip.bandwidth,
        resident=moved / chip.cache_bytes,
        cache_s=grid
        * walked
        * 2
        * TILE
        * call.head_size
        * call.cache_bytes
        / (UNIT_BYTES_PER_CLOCK * chip.units * chip.clock_hz),
        blocks=grid * tiles / (chip.units * chip.resident_blocks),
        steps=longest * TILE,
        clock_s=np.full(longest.shape, 1 / chip.clock_hz),
    )


def decode(call: Call, chip: Chip) -> Parts:
    """Work of the decode schedule: one thread block per key head, or several that split the keys if heads are few."""
    rows = ROWS * np.ceil(call.heads / call.kv_heads * call.queries / ROWS)
    pairs = call.batch * call.kv_heads
    moved = call.kv_bytes + call.io_bytes
    flops = 4 * rows * call.keys * call.head_size
    return Parts(
        compute_s=pairs * flops / chip.flops_per_s,
        longest_s=np.minimum(call.keys, TILE) * 4 * rows * call.head_size * chip.units / chip.flops_per_s,
        dram_s=moved / chip.bandwidth,
        resident=moved / chip.cache_bytes,
        cache_s=moved / (UNIT_BYTES_PER_CLOCK * chip.units * chip.clock_hz),
        blocks=pairs / (chip.units * chip.resident_blocks),
        steps=call.keys,
        clock_s=np.full(pairs.shape, 1 / chip.clock_hz),
    )


def base_s(parts: Parts, constants: Constants) -> Float64Array:
    """Seconds by the physical formula: a launch, the start of the thread blocks, and computing overlapped with reading.

    ``constants`` has these keys:

    - ``launch`` and ``start``: clock cycles of a launch, and of a thread block's start on its unit.
    - ``step`` and ``walk``: the longest loop over keys takes ``step`` · keys ^ ``walk`` clock cycles.
    - ``tail``: share of the longest thread block's time that other blocks do not hide.
    - ``compute``, ``dram`` and ``cache``: achieved shares of the published rates.
    - ``full``: share of the cache that keys can fill.
    - ``edge``: sharpness of the transition from cache to memory.
    - ``sharpness``: sharpness of the soft maximum of computing and reading.
    """
    hit = 1 / (1 + (parts.resident / constants["full"]) ** constants["edge"])
    memory = parts.dram_s / constants["dram"]
    reading = memory * (1 - hit) + np.minimum(parts.cache_s / constants["cache"], memory) * hit
    computing = (parts.compute_s + constants["tail"] * parts.longest_s) / constants["compute"]
    starting = constants["start"] * parts.blocks + constants["step"] * parts.steps ** constants["walk"]
    sharp = constants["sharpness"]
    work: Float64Array = (reading**sharp + computing**sharp) ** (1 / sharp)
    return work + (constants["launch"] + starting) * parts.clock_s

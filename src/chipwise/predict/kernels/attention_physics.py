"""Physics of fused attention: the blocks of scores that are computed, thread blocks, and the memory that they read.

There are two schedules. *Context*: a thread block processes ``TILE`` query rows of one head and loops over the unmasked
keys. *Decode*: a thread block processes the queries that share a key head, for a span of keys; the spans occupy the
whole chip, and a second step combines their results. Both read keys from the last-level cache if all of them fit.

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
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp
from chipwise.predict.kernels import analytic
from chipwise.predict.kernels.client_boards import bandwidth_factor, clock_factor

TILE = 128.0  # query rows per thread block, and keys per step, in the context schedule
ROWS = 16.0  # fewest query rows of a matrix instruction
BLOCK_BYTES = 80 * 1024.0  # shared memory per thread block: 64 queries, 128 keys and values of size 128 in bf16
UNIT_BYTES_PER_CLOCK = 64.0  # bytes per clock that an SM, CU or core reads from the last-level cache
CACHE_SECONDS = (
    16e-6  # fallback for the last-level cache's size: bytes that memory delivers in this time (A100: 20 µs, H100: 16)
)
UNIT_BANDWIDTH = 25e9  # fallback for the number of units: memory bandwidth per unit
CLOCK_HZ = 1.9e9  # fallback for the clock

SIZES = ("batch", "queries", "past", "heads", "kv_heads", "head_size", "span", "stored")
Constants = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Facts of a device that the formulas need; unpublished ones are replaced by the fallbacks above."""

    bandwidth: float  # bytes per second of its own memory
    units: float
    clock_hz: float
    cache_bytes: float  # last-level cache
    resident_blocks: float  # thread blocks that a unit holds at once
    flops_per_s: float  # dense, in the format of the products

    @classmethod
    def of(cls, device: DeviceProfile, activations: str) -> Chip:
        """The facts of ``device`` for products in ``activations``.

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
    """Rate of products; a format without a rate runs in the next wider format that has one."""
    for name in {"fp8": ("fp8", "bf16", "fp16"), "bf16": ("bf16", "fp16")}.get(activations, (activations,)):
        try:
            return device.peak(name)
        except Unsupported:
            continue
    return analytic.peak(device, activations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Sizes of attention calls as arrays of one shape. ``span`` is the most keys that a query attends to (0: all)."""

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
        """The sizes of ``op``; a chunk counts as a window of its length."""
        span = op.window if op.window is not None else op.chunk if op.chunk is not None else 0
        sizes = np.broadcast_arrays(
            *(
                np.asarray(size, dtype=np.float64)
                for size in (op.batch, op.query_tokens, op.past_tokens, op.heads, op.kv_heads, op.head_size, span, 2)
            )
        )
        return cls(
            **dict(zip(SIZES, sizes, strict=True)),
            causal=op.causal and not op.cross,
            value_bytes=dtype_of(op.activations).size_bytes,
            cache_bytes=dtype_of(op.cache).size_bytes,
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> Call:
        """Selects ``rows``, as arrays with one axis."""
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in SIZES})

    @property
    def keys(self) -> Float64Array:
        """Number of keys that the last query attends to."""
        every = self.past + self.queries
        return np.where(self.span > 0, np.minimum(every, self.span), every)

    @property
    def kv_bytes(self) -> Float64Array:
        """Distinct bytes of keys and values that are read."""
        seen = np.minimum(self.past + self.queries, self.keys + self.queries - 1)
        return self.stored * self.batch * seen * self.kv_heads * self.head_size * self.cache_bytes

    @property
    def io_bytes(self) -> Float64Array:
        """Bytes of queries read and results written."""
        return 2 * self.batch * self.queries * self.heads * self.head_size * self.value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The work of a schedule, in seconds at published rates unless stated otherwise."""

    compute_s: Float64Array  # padded products over the dense peak, spread evenly over the units
    longest_s: Float64Array  # products of the thread block with the most work, on one unit
    dram_s: Float64Array  # bytes of keys, values, queries and results over the memory's bandwidth
    resident: Float64Array  # bytes read over the capacity of the last-level cache
    cache_s: Float64Array  # the same bytes at UNIT_BYTES_PER_CLOCK per unit
    blocks: Float64Array  # waves: thread blocks per unit over those that a unit holds at once
    steps: Float64Array  # keys in the loop of one thread block, if keys are not split
    clock_s: Float64Array  # seconds per clock


def context(call: Call, chip: Chip) -> Parts:
    """Work with one thread block per ``TILE`` queries and head."""
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
    """Work with one thread block per key head; if there are few heads, keys are split among more blocks."""
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
    """Seconds by physics: launch, start of the thread blocks, and a soft maximum of computing and reading.

    ``constants``: clocks of a launch, of a thread block's start on its unit, and per key in the longest loop (to the
    power ``walk``); ``tail``, the part of the longest thread block that others do not hide; the achieved shares of the
    published rates (``compute``, ``dram``, ``cache``); ``full``, the share of the cache that keys can fill; ``edge``,
    the sharpness of the transition from cache to memory; and the sharpness of the maximum.
    """
    hit = 1 / (1 + (parts.resident / constants["full"]) ** constants["edge"])
    memory = parts.dram_s / constants["dram"]
    reading = memory * (1 - hit) + np.minimum(parts.cache_s / constants["cache"], memory) * hit
    computing = (parts.compute_s + constants["tail"] * parts.longest_s) / constants["compute"]
    starting = constants["start"] * parts.blocks + constants["step"] * parts.steps ** constants["walk"]
    sharp = constants["sharpness"]
    work: Float64Array = (reading**sharp + computing**sharp) ** (1 / sharp)
    return work + (constants["launch"] + starting) * parts.clock_s

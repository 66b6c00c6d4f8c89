"""Times of recurrences (Mamba-2, gated delta) and of short convolutions: a minimum time, plus three limits.

The limits are computing, moving bytes, and a serial chain, each at a fitted rate. The serial chain exists because the
chunks of a sequence are computed one after another, whereas heads and sequences run in parallel on the units, in waves.
For a single token, one step of the recurrence is computed, which is bound by reading and writing the state. The chain
of a convolution assumes one thread block per channel.

Mamba-2's scan was not timed; it uses the constants of the gated delta rule and counts as ``unseen``.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.scan import CHUNKS, ScanOp
from chipwise.predict.kernels import analytic, bounded
from chipwise.predict.kernels.bounded import Fitted
from chipwise.predict.kernels.stream import vector_peak
from chipwise.predict.kernels.times import KernelTimes, launch_s, together

DEFAULTS = {"compute": 0.1, "memory": 0.6, "kernels": 2.0, "chunk_s": 2e-6, "extra": 2.0, "cache": 3.0, "room": 1.0}
CONV_DEFAULTS = DEFAULTS | {"kernels": 1.0, "chunk_s": 1e-8, "extra": 1.0}
"""Initial values of a fit: achieved shares of peak and bandwidth, number of launches, seconds per chunk, start-up time
in chunks, speed of the last-level cache relative to memory, and the share of this cache for recently used data."""
CONV_CHUNK = 512  # positions that a thread block computes at once
BYTES_PER_S_PER_UNIT = 25e9  # memory bandwidth per unit, for devices without a unit count
POWER = 2.0  # exponent of the mean of the limits
LOG_HALFWIDTH = 1.0


def chain(op: ScanOp | ConvOp, device: DeviceProfile) -> tuple[Float64Array, Float64Array]:
    """Number of chunks in series, and number of waves (at least one) in which the units process parallel blocks."""
    units = device.units.number if device.units else device.mem_bandwidth_bytes_per_s / BYTES_PER_S_PER_UNIT
    if isinstance(op, ConvOp):
        tokens, blocks, length = op.positions, np.asarray(op.batch, dtype=np.float64) * op.out_channels, CONV_CHUNK
    else:
        tokens, blocks = op.query_tokens, np.asarray(op.batch, dtype=np.float64) * op.heads
        length = CHUNKS[op.variant]
    chunks = np.ceil(np.asarray(tokens, dtype=np.float64) / length)
    return chunks, np.maximum(blocks / units, 1.0)


def limits(op: ScanOp | ConvOp, device: DeviceProfile) -> tuple[Float64Array, Float64Array]:
    """Seconds of computing and of moving bytes, at the device's peak rates.

    Scans are computed on matrix units, convolutions on vector units.

    Raises:
        Unsupported: The device has no rate for the arithmetic.
    """
    work = op.work()
    flops, moved = together(work.flops, work.bytes)
    return flops / _peak(op, device), moved / device.mem_bandwidth_bytes_per_s


def hit(moved: Float64Array, device: DeviceProfile, constants: dict[str, float]) -> Float64Array:
    """Factor by which caches speed up moving ``moved`` bytes that were used recently.

    The factor is 1 if the bytes are far more than the largest cache holds.
    """
    caches = [level.capacity.number for level in device.memory if level.name in ("l2", "l3") and level.capacity]
    if not caches:
        return np.ones(moved.shape)
    inside = np.exp(-np.square(moved / (constants["room"] * max(caches))))
    gain: Float64Array = 1 + (constants["cache"] - 1) * inside
    return gain


def base_s(
    op: ScanOp | ConvOp, device: DeviceProfile, constants: dict[str, float], *, warm: bool | Float64Array = True
) -> Float64Array:
    """Seconds by the formula: a minimum time, plus a power mean of computing, moving bytes and the serial chain.

    Args:
        op: The operator.
        device: Any data sheet.
        constants: Constants by name, as in ``DEFAULTS``.
        warm: Whether the data was used recently and may be in the cache.

    Raises:
        Unsupported: The device has no rate for the arithmetic.
    """
    compute, memory = limits(op, device)
    memory = memory / np.where(warm, hit(memory * device.mem_bandwidth_bytes_per_s, device, constants), 1.0)
    chunks, waves = chain(op, device)
    serial = (chunks + constants["extra"]) * waves * constants["chunk_s"]
    joined = ((compute / constants["compute"]) ** POWER + (memory / constants["memory"]) ** POWER + serial**POWER) ** (
        1 / POWER
    )
    seconds: Float64Array = constants["kernels"] * launch_s(device) + joined
    return seconds


def times(op: ScanOp | ConvOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of one scan or convolution in a model.

    The activations of a prompt are assumed to be in the cache; the state that a decode step reads is not.

    Raises:
        Unsupported: The device has no rate for the arithmetic; the fold is unknown.
    """
    fitted = bounded.load("scan")
    chosen = fitted.fold(device, fold)
    name = "conv" if isinstance(op, ConvOp) else "gated_delta"
    situation = fitted.situation(device, fold, bounded.hardware(device))
    own = device.name if situation == "seen" else ""
    compute, memory = limits(op, device)
    step, prompt = (
        base_s(op, device, _constants(fitted, chosen, own, stack, f"{name}.{kind}"), warm=kind == "prompt")
        for kind in ("step", "prompt")
    )
    tokens = op.positions if isinstance(op, ConvOp) else op.query_tokens
    latency = np.where(np.asarray(tokens) == 1, step, prompt)  # a single token is one step of the recurrence
    halfwidth = fitted.halfwidth(name, situation)
    if isinstance(op, ScanOp) and op.variant == "mamba2":
        situation, halfwidth = "unseen", LOG_HALFWIDTH
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, halfwidth),
        compute_s=compute,
        memory_s=memory,
        launch_s=np.full(latency.shape, launch_s(device)),
        situation=situation,
    )


def _peak(op: ScanOp | ConvOp, device: DeviceProfile) -> float:
    if isinstance(op, ConvOp):
        return vector_peak(device)
    try:
        return analytic.peak(device, op.activations)
    except Unsupported:
        return vector_peak(device)


def _constants(fitted: Fitted, fold: str, device: str, stack: str, name: str) -> dict[str, float]:
    """Constants for ``stack``: those fitted to ``device`` if there are any, else those fitted to all devices.

    A stack without constants uses vLLM's. ``device`` is a name, which is empty if the fold leaves the device out.
    """
    own: dict[str, dict[str, float]] = fitted.facts["own"]
    pooled: dict[str, dict[str, float]] = fitted.facts["constants"][fold]
    return own.get(f"{device}.{stack}.{name}") or pooled.get(f"{stack}.{name}") or pooled[f"vllm.{name}"]

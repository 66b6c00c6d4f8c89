"""Recurrences (Mamba-2, gated delta) and short convolutions: the slowest of three limits, and a floor.

The third limit is the chain of chunks, which wait for each other: each chunk's state update is a step in series,
however many units there are. One token is a step of the recurrence, bound by reading and writing the state.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import ConvOp, ScanOp
from chipwise.ops.scan import CHUNKS
from chipwise.predict.kernels import analytic, bounded
from chipwise.predict.kernels.bounded import Fitted
from chipwise.predict.kernels.stream import vector_peak
from chipwise.predict.kernels.times import Array, KernelTimes, launch_s

DEFAULTS = {"compute": 0.10, "memory": 0.50, "kernels": 3.0, "chunk_s": 1.0e-6}  # where nothing was fitted
LOG_HALFWIDTH = 1.0


def kernel(op: ScanOp | ConvOp) -> str:
    """What the constants are kept under: ``conv``, or variant."""
    return "conv" if isinstance(op, ConvOp) else op.variant


def chain(op: ScanOp | ConvOp) -> Array:
    """Chunks in series: 0 for one token and for a convolution."""
    if isinstance(op, ConvOp):
        return np.zeros(np.shape(op.positions))
    tokens = np.asarray(op.query_tokens, dtype=np.float64)
    chunks: Array = np.where(tokens > 1, np.ceil(tokens / CHUNKS[op.variant]), 0.0)
    return chunks


def limits(op: ScanOp | ConvOp, device: DeviceProfile) -> tuple[Array, Array]:
    """Seconds of computing (products of a scan on matrix units, a convolution on vector units) and of moving.

    Raises:
        Unsupported: The device has no rate for it.
    """
    work = op.work()
    compute = np.asarray(work.flops, dtype=np.float64) / _peak(op, device)
    memory = np.asarray(work.bytes, dtype=np.float64) / device.mem_bandwidth_bytes_per_s
    both = np.broadcast_arrays(compute, memory, chain(op))
    return both[0], both[1]


def base_s(compute: Array, memory: Array, chunks: Array, constants: dict[str, float], launch: float) -> Array:
    """The formula: a floor, and the slowest of computing, moving and the chain of chunks."""
    seconds: Array = constants["kernels"] * launch + np.maximum(
        np.maximum(compute / constants["compute"], memory / constants["memory"]), chunks * constants["chunk_s"]
    )
    return seconds


def times(op: ScanOp | ConvOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of one scan or convolution.

    Raises:
        Unsupported: The device has no rate for the arithmetic; the fold is unknown.
    """
    fitted = bounded.load("scan")
    chosen = fitted.fold(device, fold) if fitted is not None else bounded.SHIPPED
    one = np.asarray(op.positions if isinstance(op, ConvOp) else op.query_tokens) == 1
    compute, memory = limits(op, device)
    chunks = np.broadcast_to(chain(op), compute.shape)
    launch = launch_s(device)
    step, prompt = (
        base_s(compute, memory, chunks, _constants(fitted, chosen, kernel(op), phase, stack), launch)
        for phase in ("step", "prompt")
    )
    latency = np.where(one, step, prompt)
    situation = fitted.situation(device, fold) if fitted is not None else "unseen"
    halfwidth = fitted.halfwidth(kernel(op), situation) if fitted is not None else LOG_HALFWIDTH
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, halfwidth),
        compute_s=compute,
        memory_s=memory,
        launch_s=np.full(latency.shape, launch),
        situation=situation,
    )


def _peak(op: ScanOp | ConvOp, device: DeviceProfile) -> float:
    if isinstance(op, ConvOp):
        return vector_peak(device)
    try:
        return analytic.peak(device, op.activations)
    except Unsupported:
        return vector_peak(device)


def _constants(fitted: Fitted | None, fold: str, name: str, phase: str, stack: str) -> dict[str, float]:
    if fitted is None:
        return DEFAULTS
    table: dict[str, dict[str, float]] = fitted.facts["constants"][fold]
    return table.get(f"{stack}.{name}.{phase}") or table.get(f"vllm.{name}.{phase}") or DEFAULTS

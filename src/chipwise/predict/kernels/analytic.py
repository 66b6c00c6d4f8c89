"""The roofline plus a launch: the fallback for operators without a kernel model, and a lower limit for other models."""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import DType, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.op import Op
from chipwise.predict.kernels.times import KernelTimes, launch_s, together

MEMORY_SHARE = 0.80  # share of the data sheet's bandwidth that well-written kernels reach; median over measured devices
COMPUTE_SHARE = 0.70  # share of the dense peak that such kernels reach
LOG_HALFWIDTH = 1.0  # a factor of 2.7 up or down; no such kernel was fitted

_COMPUTE = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
_COMPUTE |= {"int8": "int8", "w8a8": "int8", "q8_0": "int8"}


def compute_format(op: Op) -> str:
    """Number format in which weights are multiplied: their own if the hardware supports it, else the activations'."""
    activations = str(getattr(op, "activations", "fp32"))
    weights = getattr(op, "weights", None)
    return activations if weights is None else _COMPUTE.get(weights, activations)


def limits(op: Op, device: DeviceProfile) -> tuple[Float64Array, Float64Array]:
    """Seconds of computing at the dense peak, and of moving the bytes at the memory bandwidth.

    Raises:
        Unsupported: The device has no rate for the format.
    """
    work = op.work()
    flops, moved = together(work.flops, work.bytes)
    compute = flops / _rate(op, device) if np.any(flops > 0) else np.zeros_like(moved)
    return compute, moved / device.mem_bandwidth_bytes_per_s


def _rate(op: Op, device: DeviceProfile) -> float:
    """Operations per second of ``op``; weights in a format without a rate are first widened."""
    multiplied = compute_format(op)
    try:
        return peak(device, multiplied, kind=op.kind)
    except Unsupported:
        stored = weight_format(str(getattr(op, "weights", multiplied)))
        if multiplied not in ("fp8", "fp4") and stored.head is None:  # kernels unpack blocks of GGUF and MLX files
            raise
        return peak(device, str(getattr(op, "activations", multiplied)), kind=op.kind)


def peak(device: DeviceProfile, dtype: str, *, kind: str = "matmul") -> float:
    """Dense operations per second in ``dtype``.

    Matrix products use the rate of matrix units; other operators use that of vector units, if listed. If the device has
    no rate for 4-bit floats, they are multiplied as 8-bit or 16-bit floats.
    """
    if kind in ("norm", "elementwise", "sample"):
        return device.rate("fp32", kind="vector") or device.peak(dtype)
    return device.rate(dtype, *_WIDER.get(DType.named(dtype), ())) or device.peak(dtype)


_WIDER: dict[DType, tuple[str, ...]] = {DType.FP4: ("fp8", "bf16", "fp16")}


def times(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """The longer of the times for computing and for moving data, plus a launch.

    Both times assume the shares of the peak rates that kernels usually reach.

    Raises:
        Unsupported: The device has no rate for the format.
    """
    compute, memory = limits(op, device)
    launch = np.full(compute.shape, launch_s(device))
    return KernelTimes(
        latency_s=np.maximum(compute / COMPUTE_SHARE, memory / MEMORY_SHARE) + launch,
        log_halfwidth=np.full(compute.shape, LOG_HALFWIDTH),
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        situation="unseen",
    )

"""The roofline plus a launch: the fallback for operators without a kernel model, and the lower limit of all models."""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import DType, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.op import Op
from chipwise.predict.kernels.times import KernelTimes, launch_s

MEMORY_SHARE = 0.80  # share of the data sheet's bandwidth that well-written kernels reach; median over measured devices
COMPUTE_SHARE = 0.70  # share of the dense peak that such kernels reach
LOG_HALFWIDTH = 1.0  # a factor of 2.7 up or down; no such kernel was fitted

_COMPUTE = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
_COMPUTE |= {"int8": "int8", "w8a8": "int8", "q8_0": "int8"}


def compute_format(op: Op) -> str:
    """Number format of the products: the weights' if the hardware supports it, else the activations'."""
    activations = str(getattr(op, "activations", "fp32"))
    weights = getattr(op, "weights", None)
    return activations if weights is None else _COMPUTE.get(weights, activations)


def limits(op: Op, device: DeviceProfile) -> tuple[Float64Array, Float64Array]:
    """Seconds of computing at the dense peak, and of moving the bytes at the memory bandwidth.

    Raises:
        Unsupported: The device has no rate for the format.
    """
    work = op.work()
    flops = np.asarray(work.flops, dtype=np.float64)
    moved = np.asarray(work.bytes, dtype=np.float64)
    compute = flops / _rate(op, device) if np.any(flops > 0) else np.zeros_like(moved)
    return compute, moved / device.mem_bandwidth_bytes_per_s


def _rate(op: Op, device: DeviceProfile) -> float:
    """Operations per second of ``op``. Narrow weights that the device cannot multiply are widened first."""
    multiplied = compute_format(op)
    try:
        return peak(device, multiplied, kind=op.kind)
    except Unsupported:
        stored = weight_format(str(getattr(op, "weights", multiplied)))
        if (
            multiplied not in ("fp8", "fp4") and stored.head is None
        ):  # blocks of GGUF and MLX files are unpacked by kernels
            raise
        return peak(device, str(getattr(op, "activations", multiplied)), kind=op.kind)


def peak(device: DeviceProfile, dtype: str, *, kind: str = "matmul") -> float:
    """Dense operations per second in ``dtype``: of matrix units for products, of vector units (if listed) for other
    operators.

    If the device has no rate for 4-bit floats, such weights are multiplied as 8-bit or 16-bit floats.
    """
    if kind in ("norm", "elementwise", "sample"):
        try:
            return device.peak("fp32", kind="vector")
        except Unsupported:
            return device.peak(dtype)
    for name in (dtype, *_WIDER.get(DType.named(dtype), ())):
        try:
            return device.peak(name)
        except Unsupported:
            continue
    return device.peak(dtype)


_WIDER: dict[DType, tuple[str, ...]] = {DType.FP4: ("fp8", "bf16", "fp16")}


def times(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """The slower of computing and moving data, at the shares of the limits that kernels usually reach, plus a launch.

    Raises:
        Unsupported: The device has no rate for the format.
    """
    compute, memory = limits(op, device)
    compute, memory = np.broadcast_arrays(compute, memory)
    launch = np.full(compute.shape, launch_s(device))
    return KernelTimes(
        latency_s=np.maximum(compute / COMPUTE_SHARE, memory / MEMORY_SHARE) + launch,
        log_halfwidth=np.full(compute.shape, LOG_HALFWIDTH),
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        situation="unseen",
    )

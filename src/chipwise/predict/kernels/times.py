"""KernelTimes: the result of a kernel model, for one size of an operator or for thousands of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile

Situation = Literal["seen", "sibling", "unseen"]


def together(*sizes: Size) -> tuple[Float64Array, ...]:
    """Broadcasts numbers and arrays to float arrays of one shape."""
    return np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Predicted seconds of one kernel call, with its compute and memory limits, for each size of the operator.

    ``situation`` says on which devices such kernels were measured for the fit: on this device (``seen``), only on other
    devices of its family (``sibling``), or on neither (``unseen``).
    """

    latency_s: Float64Array  # predicted median, including the launch in the device's queue
    log_halfwidth: Float64Array  # 90 % of true values lie within latency_s * exp(±log_halfwidth)
    compute_s: Float64Array  # FLOPs over the dense peak
    memory_s: Float64Array  # bytes over the bandwidth of the device's own memory
    launch_s: Float64Array  # seconds of an empty kernel
    situation: Situation
    doubt: Float64Array | None = None  # part of log_halfwidth from costs that were not timed
    reading_s: Float64Array | None = None  # part of latency_s that infinitely fast memory would save; see ``caches``

    @property
    def low_s(self) -> Float64Array:
        """Lower end of the 90 % interval."""
        low: Float64Array = self.latency_s * np.exp(-self.log_halfwidth)
        return low

    @property
    def high_s(self) -> Float64Array:
        """Upper end of the 90 % interval."""
        high: Float64Array = self.latency_s * np.exp(self.log_halfwidth)
        return high


LAUNCH_S = {"gpu": 2.5e-6, "npu": 5e-6, "tpu": 2e-6, "cpu": 1e-6, "soc": 5e-6, "accelerator": 5e-6}
"""Seconds of an empty kernel in a full queue, by kind of device; used if a data sheet lists no launch overhead."""


def launch_s(device: DeviceProfile) -> float:
    """Seconds of an empty kernel: the figure on the data sheet, else that of ``LAUNCH_S`` for the kind of device."""
    try:
        return device.launch_overhead_s
    except Unsupported:
        return LAUNCH_S[device.kind]

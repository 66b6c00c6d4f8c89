"""KernelTimes: the result of a kernel model, for one operator or for thousands of sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile

Situation = Literal["seen", "sibling", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds of one call, with its limits. Arrays have the shape of the operator's sizes.

    ``situation`` says whether such kernels of this device, of its family, or of neither were in the fit.
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
"""Fallback by kind of device, if it lists no launch overhead: seconds of an empty kernel in a full queue."""


def launch_s(device: DeviceProfile) -> float:
    """Seconds of an empty kernel: the device's own figure, else its kind's fallback."""
    try:
        return device.launch_overhead_s
    except Unsupported:
        return LAUNCH_S[device.kind]

"""KernelTimes: what a kernel model answers for one operator, or for thousands of sizes of it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile

Situation = Literal["seen", "sibling", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds of one call, with the limits it stands against. Arrays have the shape of the operator's sizes.

    ``situation`` says what the fit had seen: such kernels on this device, on one of its family, or neither.
    """

    latency_s: Float64Array  # predicted median, its launch on the device's queue included
    log_halfwidth: Float64Array  # nine of ten truths lie within latency_s * exp(±log_halfwidth)
    compute_s: Float64Array  # FLOPs over the dense peak
    memory_s: Float64Array  # bytes over the bandwidth of the device's own memory
    launch_s: Float64Array  # an empty kernel
    situation: Situation
    doubt: Float64Array | None = None  # the part of log_halfwidth that rests on published timings, or on none

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
"""Fallback for a device that lists no launch overhead, by kind: seconds of an empty kernel in a full queue."""


def launch_s(device: DeviceProfile) -> float:
    """Seconds of an empty kernel: the device's own figure, else its kind's fallback."""
    try:
        return device.launch_overhead_s
    except Unsupported:
        return LAUNCH_S[device.kind]

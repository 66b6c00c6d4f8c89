"""KernelTimes: what a kernel model answers for one operator, or for thousands of sizes of it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from chipwise.core.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile

Array = npt.NDArray[np.float64]
Situation = Literal["seen", "sibling", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds of one call, with the limits it stands against. Arrays have the shape of the operator's sizes.

    ``situation`` says what the fit had seen: such kernels on this device, on one of its family, or neither.
    """

    latency_s: Array  # predicted median, its launch on the device's queue included
    log_halfwidth: Array  # nine of ten truths lie within latency_s * exp(±log_halfwidth)
    compute_s: Array  # FLOPs over the dense peak
    memory_s: Array  # bytes over the bandwidth of the device's own memory
    launch_s: Array  # an empty kernel
    situation: Situation
    doubt: Array | None = None  # the part of log_halfwidth that rests on published timings, or on none

    @property
    def low_s(self) -> Array:
        """Lower end of the 90 % interval."""
        low: Array = self.latency_s * np.exp(-self.log_halfwidth)
        return low

    @property
    def high_s(self) -> Array:
        """Upper end of the 90 % interval."""
        high: Array = self.latency_s * np.exp(self.log_halfwidth)
        return high


LAUNCH_S = {"gpu": 2.5e-6, "npu": 5e-6, "tpu": 2e-6, "cpu": 1e-6, "soc": 5e-6, "accelerator": 5e-6}
"""Fallback for a device that lists no launch overhead, by kind: seconds of an empty kernel in a full queue."""


def launch_s(device: DeviceProfile) -> float:
    """Seconds of an empty kernel: the device's own figure, else its kind's fallback."""
    try:
        return device.launch_overhead_s
    except Unsupported:
        return LAUNCH_S[device.kind]

"""Corrects a kernel model for one device by a few dozen kernels measured on it.

Three constants are fitted on the logarithm of measured over predicted: one for all kernels, one weighted by the share
of the launch, one by the share of compute against memory. Ridge regression keeps them near zero while few kernels are
known. Ten kernels help a little on an unseen device and may harm a little on one with known siblings; a hundred help on
both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.errors import SpecError
from chipwise.predict.kernels.times import KernelTimes

PRIOR = 0.25  # standard deviation of each constant, in logarithms, before anything is measured
NOISE = 0.15  # of one kernel around the calibrated model


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Correction fitted to kernels of one device. ``spread`` is the deviation of log(measured / calibrated)."""

    constants: tuple[float, ...]  # of all, of launch, of compute
    kernels: int
    spread: float

    def __call__(self, times: KernelTimes) -> KernelTimes:
        """Corrects the times of kernels on this device.

        The half-width moves from the model's to that of the measured kernels as their number exceeds ten.
        """
        correction = _basis(times) @ np.asarray(self.constants)
        trust = self.kernels / (self.kernels + 10.0)
        width = (1 - trust) * times.log_halfwidth + trust * Z90 * self.spread
        latency = times.latency_s * np.exp(correction).reshape(times.latency_s.shape)
        return replace(times, latency_s=latency, log_halfwidth=width)


def calibrate(times: KernelTimes, measured_s: npt.ArrayLike) -> Calibration:
    """Fits the constants to kernels with predictions ``times`` and measured medians ``measured_s``.

    Raises:
        SpecError: Shapes differ, nothing was measured, or a time is not above zero.
    """
    measured = np.asarray(measured_s, dtype=np.float64)
    if measured.shape != times.latency_s.shape or measured.size == 0:
        raise SpecError(
            f"needs a measured time for each of {times.latency_s.size} predicted kernels, got {measured.size}",
            field="measured_s",
        )
    if not np.all(np.isfinite(measured) & (measured > 0)):
        raise SpecError("every measured time must be finite and above zero seconds", field="measured_s")
    target = np.log(measured / times.latency_s).ravel()
    x = _basis(times)
    constants = np.linalg.solve(x.T @ x + (NOISE / PRIOR) ** 2 * np.eye(3), x.T @ target)
    left = target - x @ constants
    prior_rows = 5.0  # number of kernels that the prior spread counts for
    spread = float(np.sqrt((np.sum(left**2) + prior_rows * NOISE**2) / (len(left) + prior_rows)))
    return Calibration(constants=tuple(float(c) for c in constants), kernels=len(left), spread=spread)


def _basis(times: KernelTimes) -> Float64Array:
    """Regressors (kernels, 3): one, the share of the launch, and compute against memory from -1/2 to 1/2."""
    launch = np.minimum(times.launch_s / times.latency_s, 1.0).ravel()
    compute = (times.compute_s / np.maximum(times.compute_s + times.memory_s, 1e-30)).ravel() - 0.5
    return np.stack([np.ones_like(launch), launch, compute], axis=1)

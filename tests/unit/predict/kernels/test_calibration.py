"""Calibration of a kernel model by measured kernels of one device."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.predict.kernels.calibration import calibrate
from chipwise.predict.kernels.times import KernelTimes


def predicted(count: int) -> KernelTimes:
    """Kernels from launch to compute, at a half-width of 0.5."""
    compute = np.geomspace(1e-7, 1e-3, count)
    memory, launch = np.geomspace(1e-3, 1e-7, count), np.full(count, 2e-6)
    return KernelTimes(
        latency_s=np.maximum(compute, memory) + launch,
        log_halfwidth=np.full(count, 0.5),
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        situation="unseen",
    )


def test_a_device_that_is_a_quarter_slower_throughout_is_found_out() -> None:
    times = predicted(100)
    after = calibrate(times, 1.25 * times.latency_s)(times)
    assert after.latency_s == pytest.approx(1.25 * times.latency_s, rel=0.02)
    assert np.all(after.log_halfwidth < 0.2)


def test_one_kernel_says_little() -> None:
    times = predicted(1)
    after = calibrate(times, 3.0 * times.latency_s)(times)
    assert 1.0 < float(after.latency_s[0] / times.latency_s[0]) < 3.0
    assert float(after.log_halfwidth[0]) > 0.4


def test_right_predictions_stay() -> None:
    times = predicted(50)
    assert calibrate(times, times.latency_s)(times).latency_s == pytest.approx(times.latency_s)


def test_slow_compute_alone_leaves_streaming_kernels_nearly_alone() -> None:
    times = predicted(101)
    slower = np.where(times.compute_s > times.memory_s, 1.4, 1.0)
    after = calibrate(times, slower * times.latency_s)(times).latency_s / times.latency_s
    assert after[0] == pytest.approx(1.0, abs=0.1)
    assert after[-1] == pytest.approx(1.4, abs=0.12)


@pytest.mark.parametrize("bad", [[1.0], [0.0, 1.0], [np.nan, 1.0], []])
def test_times_that_cannot_be_are_errors(bad: list[float]) -> None:
    with pytest.raises(SpecError):
        calibrate(predicted(2), bad)

"""The thermal model against curves whose truth is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from chipwise.deploy.measure.sustained import Window, fit_thermal, measure_sustained, windowed
from chipwise.errors import MeasurementError
from chipwise.model.ops.workload import Workload


def curve(*, cold_s: float, rise: float, constant_s: float, seconds: float, noise: float = 0.01) -> list[Window]:
    generator = np.random.default_rng(0)
    at = (np.arange(60) + 0.5) * seconds / 60
    took = cold_s * (1 + rise * (1 - np.exp(-at / constant_s))) * np.exp(noise * generator.standard_normal(60))
    return [Window(at_s=float(a), tpot_p50_s=float(t), steps=100) for a, t in zip(at, took, strict=True)]


def test_a_phone_that_loses_a_third() -> None:
    """Time per token rises by half, so two thirds of the speed are left; half of the rise is there after 60 s ln 2."""
    found = fit_thermal(curve(cold_s=1e-3, rise=0.5, constant_s=60, seconds=600))
    assert found.sustained_share == pytest.approx(2 / 3, rel=0.02)
    assert found.time_constant_s == pytest.approx(60, rel=0.15)
    assert found.throttle_s == pytest.approx(60 * math.log(2), rel=0.15)
    assert found.observed_s == pytest.approx(600)


def test_a_spell_of_another_cause_is_no_heat() -> None:
    windows = curve(cold_s=1e-3, rise=0.5, constant_s=60, seconds=600)
    slow = [
        Window(at_s=w.at_s, tpot_p50_s=w.tpot_p50_s * (2 if 20 <= i < 26 else 1), steps=1)
        for i, w in enumerate(windows)
    ]
    assert fit_thermal(slow).sustained_share == pytest.approx(2 / 3, rel=0.03)


def test_a_server_keeps_its_speed() -> None:
    found = fit_thermal(curve(cold_s=1e-3, rise=0.0, constant_s=60, seconds=600))
    assert (found.sustained_share, found.throttle_s) == (1.0, None)


def test_windows_are_medians_over_time() -> None:
    found = windowed([0.0, 0.5, 59.5, 59.9], [1.0, 3.0, 5.0, 9.0], seconds=60.0)
    assert [(w.at_s, w.tpot_p50_s, w.steps) for w in found] == [(0.5, 2.0, 2), (59.5, 7.0, 2)]


def test_too_short_is_said_so() -> None:
    with pytest.raises(MeasurementError, match="longer"):
        fit_thermal(curve(cold_s=1e-3, rise=0.1, constant_s=1, seconds=1)[:4])


def test_a_real_process_is_watched(tmp_path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 4e-4, "decode_s": 2e-4}))
    found = measure_sustained(path, Workload(prompt_tokens=4, new_tokens=9), seconds=2.0, runtime="fake")
    assert len(found.windows) >= 30
    assert sum(window.steps for window in found.windows) == len(found.measurement.tpot_s)
    assert min(window.tpot_p50_s for window in found.windows) >= 2e-4
    assert found.thermal.observed_s >= 2.0

"""Drift between two sessions: arithmetic, and a runtime with a simulated slowdown."""

from __future__ import annotations

import json
import math

import pytest

from chipwise.deploy.measure.drift import DOUBT, FLOOR, drift
from chipwise.deploy.measure.harness import measure
from chipwise.deploy.measure.verdict import judge
from chipwise.model.ops.workload import Workload

CALIBRATED = {"compute_s": 1.0, "memory_s": 2.0, "reference_prefill_s": 4.0, "reference_decode_s": 8.0}


def test_the_reference_model_stands_for_its_phase() -> None:
    now = {"compute_s": 1.2, "memory_s": 2.4, "reference_prefill_s": 4.8, "reference_decode_s": 9.6}
    found = drift(now, CALIBRATED)
    assert found is not None
    assert (found.prefill_slowdown, found.decode_slowdown) == pytest.approx((1.2, 1.2))
    assert found.log_halfwidth == pytest.approx(FLOOR + DOUBT * math.log(1.2))
    assert found.size == pytest.approx(1.2)


def test_without_a_reference_model_arithmetic_and_memory_stand_for_it() -> None:
    """Decode: the geometric mean of 1.21 and 1."""
    found = drift({"compute_s": 1.21, "memory_s": 2.0}, CALIBRATED)
    assert found is not None
    assert (found.prefill_slowdown, found.decode_slowdown) == pytest.approx((1.21, 1.1))


def test_reference_work_that_disagrees_widen_the_interval() -> None:
    agreed = drift({"compute_s": 1.2, "memory_s": 2.4, "reference_decode_s": 9.6}, CALIBRATED)
    torn = drift({"compute_s": 0.9, "memory_s": 1.8, "reference_decode_s": 9.6}, CALIBRATED)
    assert agreed is not None
    assert torn is not None
    assert torn.log_halfwidth > agreed.log_halfwidth


def test_nothing_in_common_is_no_drift() -> None:
    assert drift({"compute_s": 1.0}, {"memory_s": 1.0}) is None


def test_more_than_fifteen_percent_is_too_much_either_way() -> None:
    for factor, clean in ((1.16, False), (1 / 1.16, False), (1.14, True)):
        found = drift({name: seconds * factor for name, seconds in CALIBRATED.items()}, CALIBRATED)
        assert found is not None
        assert judge({"drift": found.size}).clean == clean


@pytest.mark.parametrize("slower", [1.25, 0.75])
def test_a_quarter_of_drift_between_sessions_is_corrected_to_within_5_percent(slower: float, tmp_path) -> None:
    """Simulated time, stretched; samples stay as taken, the corrected metric is that of the first session."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 6e-4, "decode_s": 3e-4}))
    settings = {"runtime": "fake", "seconds": 0.1, "attempts": 1}
    workload = Workload(prompt_tokens=4, new_tokens=9)
    first = measure(path, workload, options={"simulated": True}, **settings)
    reference_s = first.environment["reference_s"]
    second = measure(path, workload, options={"simulated": True, "drift": slower}, calibrated=reference_s, **settings)
    for metric, true_s in (("ttft_p50", 6e-4), ("tpot_p50", 3e-4)):
        assert first.metric(metric) == pytest.approx(true_s, rel=1e-9)
        assert second.metric(metric) == pytest.approx(slower * true_s, rel=1e-9)
        assert second.corrected(metric) == pytest.approx(true_s, rel=0.05)
        _, low, high = second.corrected_interval(metric)
        assert low < true_s < high
    assert not second.clean  # past 15 % it is for another hour, whatever was corrected
    assert any("speed has changed" in reason for reason in second.reasons)

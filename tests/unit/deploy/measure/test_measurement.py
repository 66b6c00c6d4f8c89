"""Percentiles and verdicts, by pencil and by law."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.deploy.measure.drift import SCATTER, Drift
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.sensors import LoadReading
from chipwise.deploy.measure.verdict import LIMITS, judge, spread
from chipwise.deploy.measure.worker import readings
from chipwise.errors import MeasurementError, SpecError, UnknownName
from chipwise.model.ops.workload import Phase, Workload


def measurement(**changes) -> Measurement:
    facts = {
        "design": "d",
        "name": "m",
        "runtime": "fake",
        "runtime_version": "1",
        "threads": 1,
        "workload": Workload(),
        "device": "toy",
        "ttft_s": (0.010, 0.020),
        "tpot_s": (0.001, 0.002, 0.003),
        "cpu_s": 0.1,
        "peak_memory_bytes": 1000,
        "clean": True,
    }
    return Measurement(**{**facts, **changes})


def test_metrics_by_hand() -> None:
    m = measurement()
    assert m.metric("tpot_p50") == 0.002
    assert m.metric("ttft_p50") == pytest.approx(0.015)
    assert m.metric("tpot_p99") == pytest.approx(0.002 + 0.98 * 0.001)  # 0.99 · 2 = 1.98 places up
    assert m.metric("peak_memory") == 1000
    with pytest.raises(UnknownName, match="tpot_p99"):
        m.metric("tpot_p98")
    with pytest.raises(MeasurementError):
        measurement(peak_memory_bytes=None).metric("peak_memory")


def test_small_drift_of_a_clean_measurement_is_scatter_of_reference_work() -> None:
    small = Drift(prefill_slowdown=1.05, decode_slowdown=0.95, log_halfwidth=0.02)
    large = Drift(prefill_slowdown=1.05, decode_slowdown=1.15, log_halfwidth=0.03)
    shrunk = [found.shrunken(Phase.DECODE) for found in (small, large)]
    assert measurement(drift=small).corrected("tpot_p50") == 0.002
    assert measurement(drift=small, clean=False, reasons=("busy",)).corrected("tpot_p50") == 0.002 / shrunk[0]
    assert measurement(drift=large).corrected("tpot_p50") == 0.002 / shrunk[1]
    assert 0.95 < shrunk[0] < 1 < shrunk[1] < 1.15


def test_medians_of_a_disturbed_machine_are_those_of_its_undisturbed_moments() -> None:
    """Nine steps of 2 ms and eleven of 3.2 ms, when a neighbour ran; its own speed is as calibrated."""
    steps = (0.002,) * 9 + (0.0032,) * 11
    at_times = Drift(prefill_slowdown=1.4, decode_slowdown=1.4, log_halfwidth=0.1)
    none = Drift(prefill_slowdown=1.0, decode_slowdown=1.01, log_halfwidth=0.01)
    disturbed = {"tpot_s": steps, "clean": False, "reasons": ("two speeds",), "drift": at_times, "own_drift": none}
    found = measurement(**disturbed)
    assert found.metric("tpot_p50") == 0.0032
    assert found.corrected("tpot_p50") == found.settled("tpot_p50") == 0.002
    assert found.corrected("tpot_p99") == 0.0032 / at_times.shrunken(Phase.DECODE)
    value, low, high = found.corrected_interval("tpot_p50")
    assert low is not None and high is not None  # noqa: PT018
    assert low < value < high


def test_a_machine_that_was_slow_throughout_is_corrected_by_its_own_speed() -> None:
    slow = Drift(prefill_slowdown=1.5, decode_slowdown=1.5, log_halfwidth=0.1)
    found = measurement(tpot_s=(0.003,) * 20, clean=False, reasons=("drift",), drift=slow, own_drift=slow)
    assert found.settled("tpot_p50") == pytest.approx(0.002, rel=0.03)


def test_what_generates_nothing_has_no_steps_at_any_speed() -> None:
    none = Drift(prefill_slowdown=1.0, decode_slowdown=1.0, log_halfwidth=0.01)
    found = measurement(tpot_s=(), clean=False, reasons=("two speeds",), drift=none, own_drift=none)
    assert found.settled("ttft_p50") == 0.010
    for reading in (found.settled, found.corrected):
        with pytest.raises(MeasurementError, match="generates no tokens"):
            reading("tpot_p50")


def test_slow_throughout_ranks_behind_disturbed_at_times() -> None:
    slow, disturbed = judge({"drift": 1.3}), judge({"reference_spread": 2.5})
    assert slow.score < disturbed.score
    assert disturbed.rank < slow.rank


@given(st.floats(0.2, 5.0))
def test_drift_is_shrunk_towards_none_and_hardly_where_it_is_large(factor: float) -> None:
    found = Drift(prefill_slowdown=factor, decode_slowdown=1 / factor, log_halfwidth=0.1)
    share = math.log(found.shrunken(Phase.PREFILL)) / math.log(factor) if factor != 1 else 0.0
    assert 0 <= share <= 1
    assert share > 0.9 or abs(math.log(factor)) < 3 * SCATTER
    assert found.shrunken(Phase.DECODE) == pytest.approx(1 / found.shrunken(Phase.PREFILL))


def test_doubt_needs_reasons_and_reasons_need_doubt() -> None:
    for clean, reasons in ((True, ("busy",)), (False, ())):
        with pytest.raises(SpecError):
            measurement(clean=clean, reasons=reasons)
    with pytest.raises(SpecError):
        measurement(ttft_s=())


def test_a_quiet_machine_is_clean_and_unknown_readings_count_for_nothing() -> None:
    assert judge(dict.fromkeys(LIMITS, 0.0)).clean
    assert judge({"lost": None}).clean


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_alone_spoils_it(name: str) -> None:
    verdict = judge({name: 1.01 * LIMITS[name]})
    assert not verdict.clean
    assert len(verdict.reasons) == 1
    assert verdict.score == pytest.approx(1.01)


@given(st.dictionaries(st.sampled_from(sorted(LIMITS)), st.floats(0, 10)), st.sampled_from(sorted(LIMITS)))
def test_more_disturbance_never_looks_quieter(found: dict[str, float], name: str) -> None:
    assert judge({**found, name: found.get(name, 0) + 1}).score >= judge(found).score


def test_spread_of_reference_times() -> None:
    assert spread([1.0] * 9 + [50.0]) == 1.0  # one interruption in ten is no change of speed
    assert spread([1.0] * 5 + [2.0] * 5) == 2.0
    assert spread([1.0, 2.0]) is None


def test_readings_by_hand() -> None:
    """Two seconds of wall: 1.5 s were ours, the core was busy for 1.9 s, 0.02 s were stolen."""
    before = LoadReading(
        wall_s=10, process_cpu_s=1, involuntary_switches=5, busy_s=100, steal_s=0, elsewhere_s=50, load=0.1
    )
    after = LoadReading(
        wall_s=12, process_cpu_s=2.5, involuntary_switches=25, busy_s=101.9, steal_s=0.02, elsewhere_s=51, load=0.2
    )
    found = readings(before, after, threads=1, cpus=1)
    assert found["lost"] == pytest.approx(0.25)
    assert found["others"] == pytest.approx(0.2)
    assert found["steal"] == pytest.approx(0.01)
    assert found["switches_per_s"] == pytest.approx(10)
    assert readings(before, after, threads=2, cpus=2)["lost"] is None


def test_an_encoder_has_passes_and_no_steps() -> None:
    found = measurement(tpot_s=())
    assert found.encodes
    assert found.metric("ttft_p50") == measurement().metric("ttft_p50")
    with pytest.raises(MeasurementError, match="generates no tokens"):
        found.metric("tpot_p50")

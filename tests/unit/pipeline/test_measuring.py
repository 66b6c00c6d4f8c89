from chipwise.pipeline.limits import within
from chipwise.space import parse_constraints

LIMITS = parse_constraints({"tpot_p99": "<= 100 us", "tpot_p50": "<= 50 us", "peak_memory": "<= 80 MB"})


def test_headroom_is_for_tails_alone() -> None:
    values = {"tpot_p99": 90e-6, "tpot_p50": 49e-6, "peak_memory": 79e6}
    assert within(LIMITS, values)
    assert not within(LIMITS, values, headroom=0.85)  # 90 µs is more than 85 µs
    assert within(LIMITS, values | {"tpot_p99": 84e-6}, headroom=0.85)


def test_what_was_not_measured_breaks_nothing() -> None:
    assert within(LIMITS, {"tpot_p50": 10e-6})

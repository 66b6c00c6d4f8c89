import pytest

from chipwise.core.errors import SpecError
from chipwise.space import parse_constraints, parse_objectives
from chipwise.space.constraints import broken


def test_limits_are_read_in_human_units() -> None:
    ttft, memory = parse_constraints({"ttft_p99": "<= 20 ms", "peak_memory": "<= 100 MB"})
    assert (ttft.limit, memory.limit) == (0.02, 100e6)
    assert ttft.holds(0.02)
    assert not ttft.holds(0.0201)
    assert ttft.excess(0.03) == pytest.approx(0.5)  # half as much again as allowed


def test_at_least_counts_the_other_way() -> None:
    (floor,) = parse_constraints({"parameters": ">= 1M"})
    assert floor.holds(1e6)
    assert floor.excess(0.5e6) == pytest.approx(0.5)


def test_only_what_is_known_can_break() -> None:
    limits = parse_constraints({"tpot_p99": "<= 3 ms", "peak_memory": "<= 1 MB"})
    assert [item.metric for item in broken(limits, {"peak_memory": 2e6})] == ["peak_memory"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tpot_p98": "<= 3 ms"}, "did you mean"),
        ({"tpot_p99": "3 ms"}, "not a limit"),
        ({"tpot_p99": "<= 3"}, "no unit"),
        ({"tpot_p99": "<= 3 MB"}, "unknown unit"),
        ({"tpot_p99": "<= 0 ms"}, "positive"),
        ({"tpot_p99": ["<= 1 ms", ">= 2 ms"]}, "contradicts"),
        ({"tpot_p50": ">= 2 ms", "tpot_p99": "<= 1 ms"}, "contradicts"),
    ],
)
def test_bad_limits_say_what_is_wrong(data, message) -> None:
    with pytest.raises(SpecError, match=message):
        parse_constraints(data)


def test_objectives_need_a_known_metric_and_direction() -> None:
    assert parse_objectives({"bits_per_byte": "down"})[0].direction == "minimize"
    for bad in ({}, {"speed": "up"}, {"tpot_p50": "left"}):
        with pytest.raises(SpecError):
            parse_objectives(bad)

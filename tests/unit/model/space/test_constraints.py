import re
from types import SimpleNamespace

import pytest

from chipwise.design.limits import broken, derived, derived_intervals, parse_constraints, parse_objectives
from chipwise.errors import SpecError


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


def test_a_floor_on_throughput_is_broken_by_less() -> None:
    (floor,) = parse_constraints({"throughput": ">= 20 ktokens/s"})
    assert (floor.metric, floor.op, floor.limit) == ("throughput", ">=", 20_000.0)
    assert floor.holds(20_001.0)
    assert floor.excess(15_000.0) == pytest.approx(0.25)


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
        ({"tpot_p99": []}, "the list is empty"),
        ({"tpot_p99": ["<= 1 ms", ">= 2 ms"]}, "contradicts"),
        ({"tpot_p50": ">= 2 ms", "tpot_p99": "<= 1 ms"}, "contradicts"),
        ({"throughput": ["<= 500 tokens/s", ">= 1 ktokens/s"]}, "contradicts"),
        ({"throughput": ">= 5 ms"}, "unknown unit"),
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
    with pytest.raises(SpecError, match="use tpot_p50: minimize as the objective"):
        parse_objectives({"tpot_sustained": "minimize"})
    assert parse_objectives({"throughput": "maximize"})[0].direction == "maximize"
    with pytest.raises(SpecError, match="throughput: more is better; write maximize"):
        parse_objectives({"throughput": "minimize"})
    for metric in (
        "ttft_p50",
        "ttft_p99",
        "tpot_p50",
        "tpot_p99",
        "peak_memory",
        "joules_per_token",
        "usd_per_1k_tokens",
    ):
        for direction in ("maximize", "up"):
            with pytest.raises(SpecError, match=f"objectives.{metric}: less is better; write minimize"):
                parse_objectives({metric: direction})
        assert parse_objectives({metric: "down"})[0].direction == "minimize"


def test_a_floor_of_a_task_is_a_share_and_kept_apart_from_devices() -> None:
    (floor,) = parse_constraints({"accuracy@organ-system": ">= 85 %"}, tasks=["organ-system"])
    assert (floor.task, floor.op, floor.limit) == ("organ-system", ">=", 0.85)
    assert floor.holds(0.85)
    assert not floor.holds(0.8499)
    assert floor.show(0.9034) == "90.3 %"
    assert parse_constraints({"accuracy@t": ">= 0.85"}, tasks=["t"])[0].limit == floor.limit
    (device,) = parse_constraints({"tpot_p99": "<= 3 ms"})
    assert device.task is None


def test_a_floor_on_amounts_is_a_correlation() -> None:
    (floor,) = parse_constraints({"spearman@sizes": ">= 0.6"}, tasks=["sizes"])
    assert (floor.limit, floor.show(0.6123)) == (0.6, "0.612")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"accuracy@organ-systems": ">= 85 %"}, "did you mean 'organ-system'"),
        ({"accuracy": ">= 85 %"}, "name the task, such as accuracy@organ-system"),
        ({"acuracy@organ-system": ">= 85 %"}, "did you mean 'accuracy'"),
        ({"accuracy@organ-system": ">= 85"}, "for percent write '>= 85 %'"),
        ({"accuracy@organ-system": ">= 85 ms"}, "neither a percentage nor a share"),
        ({"accuracy@organ-system": "<= 85 %"}, "not a lower bound"),
        ({"accuracy@organ-system": "85 %"}, "not a limit"),
        ({"accuracy@organ-system": ">= 0 %"}, "above 0"),
        ({"accuracy@organ-system": ">= 101 %"}, "at most 1"),
    ],
)
def test_bad_floors_say_what_is_wrong(data, message) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_constraints(data, tasks=["organ-system"])


def test_without_tasks_no_floor_makes_sense_and_where_any_may_be_all_are_read() -> None:
    with pytest.raises(SpecError, match="list 'x' under `tasks`"):
        parse_constraints({"accuracy@x": ">= 85 %"})
    assert parse_constraints({"accuracy@x": ">= 85 %"}, tasks=None)[0].task == "x"


@pytest.mark.parametrize(("sound_s", "expected"), [(None, {}), (2.0, {"rtf": 0.25}), (0.25, {"rtf": 2.0})])
def test_the_real_time_factor_is_of_a_second_of_sound(sound_s: float | None, expected: dict[str, float]) -> None:
    """A cost that follows from another one; its bounds follow from that one's, and what is unknown stays so."""
    request = SimpleNamespace(sound_s=sound_s, frames=None)
    assert derived({"ttft_p50": 0.5, "peak_memory": 1e6}, request) == expected
    bounds = derived_intervals({"ttft_p50": [0.5, None], "ttft_p99": [0.6, None]}, request)
    assert bounds == {name: [value, None] for name, value in expected.items()}


def test_frames_per_second_rise_when_times_fall() -> None:
    """A frame of 20 ms (10 to 40) gives 50 frames a second (25 to 100)."""
    request = SimpleNamespace(sound_s=None, frames=1)
    assert derived({"ttft_p50": 0.02}, request) == {"fps": 50}
    assert derived_intervals({"ttft_p50": [0.02, 0.01, 0.04]}, request)["fps"] == pytest.approx([50, 25, 100])
    assert derived_intervals({"ttft_p50": [0.01, 0.04]}, request)["fps"] == pytest.approx([25, 100])
    (limit,) = parse_constraints({"fps": ">= 30"})
    assert limit.holds(50)
    assert not limit.holds(25)
    with pytest.raises(SpecError, match="more is better; write maximize"):
        parse_objectives({"fps": "minimize"})
    assert parse_objectives({"fps": "maximize"})[0].direction == "maximize"

"""Every device that was named is in the answer or has a reason; load and margin are two numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chipwise.design.fleet.answer import MUCH, planned
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import limits_of
from chipwise.design.fleet.question import FleetQuestion
from chipwise.errors import Infeasible
from chipwise.predict.load.load import RequestClass

SMALL = {
    "model": "Qwen/Qwen3-0.6B", "rate_per_s": 5.0, "devices": ("l4",), "tp": (1,), "weights": ("bf16",),
    "requests": 60, "classes": (RequestClass(prompt_tokens=300, new_tokens=30),),
}  # fmt: skip


def asked(**fields: object) -> FleetQuestion:
    return FleetQuestion(**(SMALL | fields))


def test_every_device_that_was_named_is_in_the_answer_or_has_its_reason() -> None:
    """An H100 holds 5 ms a token of 14B; one L4 is too small for it, and a link-less Trainium cannot split it in 2."""
    found = planned(
        asked(
            model="Qwen/Qwen3-14B", devices=("h100-sxm", "l4", "a100-sxm-80gb"), weights=("bf16", "fp8"),
            limits={"tpot_p99": 0.012},
        )
    )  # fmt: skip
    reasons = {each.device: each.reason for each in found.left_out}
    assert {option.device for option in found.options} | set(reasons) == {"h100-sxm", "l4", "a100-sxm-80gb"}
    assert not {option.device for option in found.options} & set(reasons)
    assert "no arrangement meets tpot_p99 <= 12 ms (closest: predicted" in reasons["l4"]
    assert "the closest is TP 1, FP8" in reasons["l4"]
    assert "BF16 TP 1 cannot run the model" in reasons["l4"]


def test_what_cannot_run_says_what_it_lacks() -> None:
    found = planned(asked(model="Qwen/Qwen3-14B", devices=("h100-sxm", "l4"), limits={"ttft_p99": 1.0}))
    (left,) = found.left_out
    assert left.device == "l4"
    assert left.reason.startswith("cannot run the model; at TP 1, BF16: Qwen/Qwen3-14B needs ")
    assert left.needed_devices is None


def test_a_budget_that_the_load_alone_exceeds_is_named() -> None:
    found = planned(asked(devices=("l4", "h100-sxm"), usd_per_s=3.0 / 3600, limits={"ttft_p99": 1.0}))
    reasons = {each.device: each.reason for each in found.left_out}
    assert [option.device for option in found.options] == ["l4"]
    assert reasons["h100-sxm"].startswith(
        "with 90 % certainty, the load alone, without limits on times, needs 1 device "
    )
    assert reasons["h100-sxm"].endswith("devices, power and budget allow only 0")


def test_upper_ends_are_said_to_be_upper_ends() -> None:
    with pytest.raises(Infeasible, match=r"\(closest: predicted .* ms, with 90 % certainty at most .* ms\)"):
        planned(asked(limits={"ttft_p99": 1e-3}))


def test_where_nothing_holds_each_device_that_was_named_has_its_reason() -> None:
    with pytest.raises(
        Infeasible, match=r"no arrangement meets .*\. l4: cannot run the model; .*\. a10: cannot run .*"
    ):
        planned(asked(model="Qwen/Qwen3-14B", devices=("l4", "a10", "h100-sxm"), limits={"ttft_p99": 1e-4}))
    with pytest.raises(Infeasible, match=r"no arrangement can run .*\. l4: cannot run .*\. a10: cannot run"):
        planned(asked(model="Qwen/Qwen3-14B", devices=("l4", "a10")))


def test_the_margin_is_what_the_fleet_has_beyond_what_the_prediction_needs() -> None:
    """Needed is the fewest that hold at the median: that many do, and one fewer does not."""
    question = asked(rate_per_s=300.0, limits={"tpot_p99": 0.012})
    option = planned(question).best
    assert option.needed_devices is not None
    assert option.needed_usd_per_h is not None
    assert option.usd_per_h is not None
    assert 1 < option.needed_devices < option.devices
    assert option.margin == pytest.approx(option.devices / option.needed_devices)
    assert option.needed_usd_per_h / option.usd_per_h == pytest.approx(option.needed_devices / option.devices)
    finder, limits = Finder(question), limits_of(question)
    (candidate,) = finder.candidates
    assert finder.holding.fewest(candidate, 0.0, limits) == option.needed_devices
    assert finder.holding.fewest(candidate, finder.z, limits) == option.devices
    assert f"without prediction error, {option.needed_devices}" in option.headline()
    assert ("times as many are needed for certainty" in option.headline()) is (option.margin >= MUCH)


def test_two_pools_say_what_the_prediction_needs_of_their_arrangements() -> None:
    question = asked(rate_per_s=120.0, devices=("l4",), fleets=("apart",), limits={"tpot_p99": 0.012})
    option = planned(question).best
    assert option.second is not None
    assert option.needed_devices is not None
    assert option.margin is not None
    whole = option.devices + option.second.devices
    assert 2 <= option.needed_devices <= whole
    assert option.margin == pytest.approx(whole / option.needed_devices)
    finder, limits = Finder(question), limits_of(question)
    fleet = finder.found(limits)[0]
    needed = finder.needed_of_two(fleet, limits)
    assert needed is not None
    assert needed.devices == option.needed_devices
    assert finder.holding.holds(needed, 0.0, limits)


def test_even_odds_need_no_margin() -> None:
    option = planned(asked(rate_per_s=300.0, limits={"tpot_p99": 0.012}, confidence=0.5)).best
    assert option.margin is None
    assert option.about_margin == ""
    assert math.isfinite(option.chance)


def test_a_trace_is_priced_at_its_own_sizes(tmp_path: Path) -> None:
    """Evenly spaced requests of a rate, written down as a trace, cost the same energy and the same dollars."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,new_tokens\n" + "".join(f"{i / 5},3000,100\n" for i in range(60)))
    kinds = (RequestClass(prompt_tokens=3000, new_tokens=100),)
    rate = planned(asked(classes=kinds, arrivals="constant", limits={"ttft_p99": 5.0})).best
    trace = planned(asked(rate_per_s=1.0, classes=(RequestClass(),), trace=str(path), limits={"ttft_p99": 5.0})).best
    assert trace.joules_per_output_token == pytest.approx(rate.joules_per_output_token, rel=0.05)
    assert trace.usd_per_million_output_tokens == pytest.approx(rate.usd_per_million_output_tokens, rel=0.05)

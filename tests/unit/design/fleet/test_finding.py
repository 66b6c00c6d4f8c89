"""The plan is the cheapest fleet within the limits, or an error if there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_force import cheapest_by_force

import chipwise
from chipwise.design.fleet.answer import planned
from chipwise.design.fleet.evaluating import deviations
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import limits_of
from chipwise.design.fleet.question import FleetQuestion, question_from, rate_of, read_question
from chipwise.errors import Infeasible, SpecError, UnknownName
from chipwise.predict.load.load import RequestClass
from chipwise.predict.load.policy import Speculation

MODEL = "Qwen/Qwen3-0.6B"
SMALL = {"model": MODEL, "devices": ("l4",), "tp": (1,), "weights": ("bf16",), "requests": 60}


def asked(**fields: object) -> FleetQuestion:
    return FleetQuestion(**({"rate_per_s": 5.0} | SMALL | fields))


def test_the_plan_is_the_cheapest_that_holds_in_fifty_random_cases() -> None:
    """Against every arrangement with every number of replicas."""
    rng = np.random.default_rng(0)
    devices, held = ("l4", "a10", "l40s", "rtx-4090"), 0
    for case in range(50):
        chosen = tuple(rng.choice(devices, 2, replace=False).tolist())
        question = asked(
            rate_per_s=float(2 ** rng.uniform(2, 8)),
            classes=(RequestClass(prompt_tokens=int(2 ** rng.uniform(6, 10)), new_tokens=int(2 ** rng.uniform(2, 6))),),
            limits={"ttft_p99": float(2 ** rng.uniform(-6, -2)), "tpot_p95": float(2 ** rng.uniform(-8, -5))},
            devices=chosen,
            tp=(1, 2),
            most_devices=6,
            confidence=float(rng.choice([0.5, 0.9])),
            seed=case,
        )
        finder = Finder(question)
        best = finder.found()
        forced = cheapest_by_force(question, most_replicas=6)
        assert (not best) == (forced is None), case
        if forced is not None:
            held += 1
            assert best[0].usd_per_s == pytest.approx(forced.usd_per_s), case
            assert finder.holding.holds(best[0], finder.z, limits_of(question))
    assert 15 <= held <= 48  # some cases have no answer, most have one


def test_a_limit_that_nothing_meets_is_named_with_the_closest_value() -> None:
    with pytest.raises(Infeasible, match=r"ttft_p99 <= 100 µs \(closest: .* ms\).*the closest is .* x l4"):
        planned(asked(limits={"ttft_p99": 1e-4}))


def test_a_rate_that_no_fleet_can_serve_is_named_with_the_devices_it_would_take() -> None:
    with pytest.raises(Infeasible, match=r"no fleet within 2 devices serves 5,000 requests/s; at least .* x l4"):
        planned(asked(rate_per_s=5000.0, most_devices=2, limits={"ttft_p99": 1.0}))
    with pytest.raises(Infeasible, match="within 70 W of power"):
        planned(asked(rate_per_s=5000.0, power_w=70.0))


def test_a_model_that_fits_nowhere_says_why() -> None:
    with pytest.raises(Infeasible, match=r"no arrangement can run .*too much"):
        planned(asked(model="meta-llama/Llama-3.1-70B-Instruct"))


def test_an_unknown_price_is_unknown_and_comes_last() -> None:
    found = planned(asked(devices=("l4", "rtx-3090"), runtimes=("vllm",), limits={"ttft_p99": 2.0}))
    assert [option.device for option in found.options] == ["l4", "rtx-3090"]
    last = found.options[-1]
    assert last.usd_per_h is None
    assert last.usd_per_million_output_tokens is None
    assert found.rank_confidence is None
    assert "price unknown" in found.headline()


def test_a_price_of_ones_own_replaces_the_list_price() -> None:
    found = planned(asked(prices={"l4": 1.0 / 3600}, limits={"ttft_p99": 2.0}))
    assert found.best.usd_per_h == pytest.approx(found.best.devices)


def test_more_certainty_and_tighter_limits_never_cost_less() -> None:
    costs = [
        planned(asked(rate_per_s=60.0, limits={"tpot_p99": limit}, confidence=confidence)).best.usd_per_h
        for limit, confidence in ((0.05, 0.5), (0.05, 0.9), (0.02, 0.9))
    ]
    assert costs == sorted(costs)  # type: ignore[type-var]


def test_the_chance_is_at_least_the_confidence_and_the_interval_holds_the_value() -> None:
    found = planned(asked(rate_per_s=60.0, limits={"tpot_p99": 0.03}, confidence=0.8))
    assert found.best.chance >= 0.8 - 1e-6
    for each in found.best.times.values():
        assert each.low is not None
        assert each.high is not None
        assert each.low <= each.value <= each.high
    assert deviations(0.5) == pytest.approx(0.0)


def test_classes_have_limits_of_their_own() -> None:
    kinds = (RequestClass(name="chat", prompt_tokens=100, new_tokens=20), RequestClass(name="long", prompt_tokens=3000))
    found = planned(asked(classes=kinds, class_limits={"chat": {"ttft_p95": 1.0}}, rate_per_s=2.0))
    assert "chat:ttft_p95" in found.best.class_times
    assert found.best.class_times["chat:ttft_p95"].value < 1.0
    with pytest.raises(SpecError, match=r"class_limits\.chta: unknown class; did you mean 'chat'"):
        asked(classes=kinds, class_limits={"chta": {}})


def test_dollars_of_tokens_add_up_to_the_fleets_price() -> None:
    found = planned(asked(limits={"ttft_p99": 2.0})).best
    tokens = 5.0 * 3600 * np.array([1024, 128]) / 1e6  # million tokens an hour at 5 requests/s
    prices = np.array([found.usd_per_million_input_tokens, found.usd_per_million_output_tokens])
    assert tokens @ prices == pytest.approx(found.usd_per_h)


def test_a_question_can_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "question.yaml"
    path.write_text(
        f"model: {MODEL}\nrate: 120/min\ndevices: l4, a10\nlimits: {{ttft_p99: 500 ms}}\nprices: {{a10: 0.4 USD/h}}\n"
        "power: 2 kW\nbudget: 10 USD/h\nclasses:\n- {name: chat, prompt: 500, new: 50, limits: {tpot_p99: 40 ms}}\n"
    )
    question = read_question(path)
    assert question.rate_per_s == 2.0
    assert question.devices == ("l4", "a10")
    assert question.limits == {"ttft_p99": 0.5}
    assert question.class_limits == {"chat": {"tpot_p99": 0.04}}
    assert question.prices == {"a10": pytest.approx(0.4 / 3600)}
    assert question.power_w == 2000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": "fast"}, "rate: must be a rate such as 20/s"),
        ({"rate": "-1/s"}, "rate: must be a rate"),
        ({"rate": 0}, "rate: must be above 0"),
        ({"rate": 1, "limits": {"ttft_p98": "1 s"}}, r"limits\.ttft_p98: no limit has this name"),
        ({"rate": 1, "limits": {"ttft_p99": "fast"}}, r"limits\.ttft_p99: .*not a quantity"),
        ({"rate": 1, "confidence": 1.5}, "confidence: must be above 0"),
        ({"rate": 1, "prices": {"l4": "cheap"}}, r"prices\.l4"),
        ({"rate": 1, "colour": 1}, "colour: unknown field"),
        ({}, "rate: this field is missing"),
    ],
)
def test_mistakes_in_a_question_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        question_from({"model": MODEL, **fields})


def test_rates_are_read_as_people_write_them() -> None:
    assert [rate_of(text) for text in (20, "20", "20/s", "90/min", "1_800/h")] == [20, 20, 20, 1.5, 0.5]


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        chipwise.plan(MODEL, rate=1, devices=["h100-smx"])


def test_experts_and_copies_of_attention_are_among_the_choices_of_mixtures_alone() -> None:
    both = {"tp": (1, 2), "dp": (1, 2)}
    mixture = asked(model="Qwen/Qwen3-30B-A3B", devices=("h100-sxm",), runtimes=("vllm",), **both)
    finder = Finder(mixture)
    plans = {
        (each.arrangement.deployment.tp, each.arrangement.deployment.ep, each.arrangement.deployment.dp)
        for each in finder.candidates
    }
    assert {(1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2), (2, 4, 2)} <= plans  # vLLM: one group a device, or one
    assert (2, 2, 2) not in plans
    dense = Finder(asked(**both))
    assert {(each.arrangement.deployment.ep, each.arrangement.deployment.dp) for each in dense.candidates} == {(1, 1)}
    found = planned(mixture)
    assert found.best.usd_per_h is not None
    forced = cheapest_by_force(mixture, most_replicas=4)
    assert forced is not None
    assert found.best.usd_per_h == pytest.approx(3600 * (forced.usd_per_s or 0))


def test_drafts_that_are_always_accepted_save_devices_and_bad_ones_are_not_taken() -> None:
    limits = {"tpot_p99": 0.012}
    good, bad = (
        planned(asked(rate_per_s=60.0, limits=limits, devices=("a10",), speculation=(drafts,)))
        for drafts in (Speculation(drafted=4, acceptance=0.95), Speculation(drafted=4, acceptance=0.0))
    )
    assert good.best.speculation is not None
    assert "drafted by n-grams" in good.best.label
    assert bad.best.speculation is None
    assert good.best.usd_per_h <= bad.best.usd_per_h  # type: ignore[operator]


def test_machines_of_a_cloud_are_paid_whole_and_hold_their_replicas() -> None:
    found = planned(asked(devices=("p5.48xlarge", "g6.xlarge"), tp=(1, 2), prices={"p5.48xlarge": 16 / 3600}))
    small, large = found.options
    assert (small.device, small.devices, small.usd_per_h) == ("g6.xlarge", 1, pytest.approx(0.8048))
    assert (large.devices, large.usd_per_h) == (1, pytest.approx(16.0)), "one of eight chips costs all eight"
    assert large.label.startswith("1 x p5.48xlarge (1 of 8 chips)")
    with pytest.raises(Infeasible, match=r"g6\.xlarge has 1 chip; a replica cannot extend over several machines"):
        planned(asked(devices=("g6.xlarge",), tp=(2,)))

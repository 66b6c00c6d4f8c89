"""An agent's loop: a turn is a sum of drawn times, its largest part is named, alternatives are tried in order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.core.files import build, write_yaml
from chipwise.design.fleet.agent_loop import AgentLoop, price_loop, read_loop
from chipwise.errors import SpecError

EXAMPLE = Path(__file__).parents[4] / "examples" / "agent.yaml"
THINK = {"name": "think", "model": "Qwen/Qwen3-0.6B", "prompt": 200, "new": 20}


def loop(*parts: dict[str, Any], budget: str = "1 s") -> AgentLoop:
    return build(AgentLoop, {"budget": budget, "device": "l4", "parts": list(parts)})


def probability_of_sum(at_s: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """P(X + Y <= at_s) of independent log-normal times given as P50 and P99, by integrating over the quantiles of X."""
    z99 = NormalDist().inv_cdf(0.99)
    z = np.array([NormalDist().inv_cdf(each) for each in (np.arange(20_000) + 0.5) / 20_000])
    x = first[0] * (first[1] / first[0]) ** (z / z99)
    left = (at_s - x)[x < at_s]
    reached = np.log(left / second[0]) / np.log(second[1] / second[0]) * z99
    return float(sum(NormalDist().cdf(each) for each in reached)) / len(x)


def test_parts_and_their_calls_add() -> None:
    """A measured time counts as it is, and so do its calls; a model's turn is near the sum of its medians."""
    one = price_loop(loop(THINK))
    both = price_loop(loop({**THINK, "calls": 2}, {"name": "act", "time": "30 ms", "calls": 3}))
    alone = api.estimate("Qwen/Qwen3-0.6B", device="l4", prompt=200, new=20)
    assert one.total.value == pytest.approx(alone.ttft_s + 19 * alone.tpot_s, rel=0.02)
    assert both.total.value == pytest.approx(2 * one.total.value + 0.09, rel=0.03)
    assert one.total.low is None or one.total.low < one.total.value < one.total.high
    assert both.parts[1].turn_s.low == both.parts[1].turn_s.high == pytest.approx(0.09)
    assert both.largest.part.name == ("think" if 2 * one.total.value > 0.09 else "act")


def test_a_turn_has_the_percentiles_of_a_sum_of_independent_times() -> None:
    """Two measured parts against an integral; their medians alone add to 3 s, and their P99s to 10 s."""
    sense = {"name": "sense", "time": "1 s", "time_p99": "4 s"}
    act = {"name": "act", "time": "2 s", "time_p99": "6 s"}
    found = price_loop(loop(sense, act))
    assert probability_of_sum(found.total.value, (1, 4), (2, 6)) == pytest.approx(0.5, abs=0.01)
    assert probability_of_sum(found.p99_s.value, (1, 4), (2, 6)) == pytest.approx(0.99, abs=0.002)
    assert 3 < found.total.value < found.p99_s.value < 10
    twice = price_loop(loop({**act, "calls": 2}))
    again = price_loop(loop(act, {**act, "name": "act again"}))
    assert probability_of_sum(twice.total.value, (2, 6), (2, 6)) == pytest.approx(0.5, abs=0.01)
    assert probability_of_sum(again.p99_s.value, (2, 6), (2, 6)) == pytest.approx(0.99, abs=0.002)


def test_medians_do_not_add() -> None:
    """Twenty calls with a tail of three: by the central limit theorem the median nears 20 means, not 20 medians."""
    found = price_loop(loop({"name": "act", "time": "1 s", "time_p99": "3 s", "calls": 20}))
    sigma = np.log(3) / NormalDist().inv_cdf(0.99)
    mean, variance = np.exp(sigma**2 / 2), np.expm1(sigma**2) * np.exp(sigma**2)
    assert found.total.value == pytest.approx(20 * mean, rel=0.01)
    assert found.total.value > 1.1 * 20
    normal_p99_s = 20 * mean + NormalDist().inv_cdf(0.99) * (20 * variance) ** 0.5
    assert found.p99_s.value == pytest.approx(normal_p99_s, rel=0.03)


def test_fixed_times_have_no_tail() -> None:
    found = price_loop(loop({"name": "fixed", "time": "1 s", "calls": 2_000}))
    assert found.total == found.p99_s
    assert found.total.value == 2_000


def test_the_p99_of_one_pass_is_that_of_its_estimate() -> None:
    """One token: nothing to add, so a turn has the TTFT's P99 with its interval."""
    found = price_loop(loop({**THINK, "model": "google/vit-base-patch16-224", "new": 1}))
    alone = api.estimate("google/vit-base-patch16-224", device="l4", new=1).metrics["ttft_p99"]
    p99_s = found.p99_s
    assert (p99_s.value, p99_s.low, p99_s.high) == pytest.approx((alone.value, alone.low, alone.high), rel=0.05)


def test_a_model_that_sees_answers_token_by_token() -> None:
    """Each further token of an answer about an image adds a step; models that cannot are refused by name."""
    sees = {"name": "see", "model": "Qwen/Qwen2-VL-2B-Instruct", "images": 1, "image_size": "448x448"}
    one, many = (price_loop(loop({**sees, "new": new}, budget="9 s")).parts[0] for new in (1, 40))
    assert many.tpot_s is not None
    assert many.turn_s.value == pytest.approx(one.turn_s.value + 39 * many.tpot_s, rel=0.02)
    assert price_loop(loop({**sees, "new": 40, "images": 4})).total.value > many.turn_s.value
    vit = {"name": "see", "model": "google/vit-base-patch16-224"}
    with pytest.raises(
        SpecError, match=r"parts\.see: new: .*one pass and generates no tokens; leave out the field new, or name"
    ):
        price_loop(loop({**vit, "new": 8}))
    with pytest.raises(SpecError, match=r"parts\.see: images: .*reads one image in each request by itself"):
        price_loop(loop({**vit, "images": 1}))
    with pytest.raises(SpecError, match=r"parts\.see: images: .*reads images, as Qwen/Qwen2-VL-2B-Instruct has"):
        price_loop(loop({**THINK, "name": "see", "images": 1}))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({**THINK, "time_p99": "1 s"}, "time_p99.*is a P99 and needs the median too"),
        ({"name": "act", "time": "2 s", "time_p99": "1 s"}, "time_p99.*must be at least the median, 2 s"),
        ({"name": "act", "time": "2 s", "time_p99": "soon"}, "time_p99"),
    ],
)
def test_a_p99_that_cannot_be_is_refused(part: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        loop(part)


def test_what_fits_is_told_by_the_parts_own_times() -> None:
    """So many new tokens fit, and one more does not; the same of calls."""
    other = {"name": "act", "time": "30 ms"}
    found = price_loop(loop(THINK, other, budget="250 ms"))
    fitting = found.parts[0].new_within(found.room_s(found.parts[0]))
    assert fitting is not None
    for new, fits in ((fitting, True), (fitting + 2, False)):  # a token later in the text takes a little longer
        assert price_loop(loop({**THINK, "new": new}, other, budget="250 ms")).fits is fits
    calls = found.parts[1].calls_within(found.room_s(found.parts[1]))
    assert price_loop(loop(THINK, {**other, "calls": calls}, budget="250 ms")).fits
    assert not price_loop(loop(THINK, {**other, "calls": calls + 1}, budget="250 ms")).fits
    assert found.parts[1].new_within(1.0) is None


def test_the_alternative_nearest_to_what_was_asked_is_chosen() -> None:
    """Models in order of preference: the first that fits, not the fastest."""
    models = ["Qwen/Qwen3-8B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-0.6B"]
    turns = [price_loop(loop({**THINK, "model": model})).total.value for model in models]  # the same draws in each
    assert turns == sorted(turns, reverse=True)
    between = f"{1000 * (turns[0] + turns[1]) / 2} ms"
    part = {**THINK, "model": models[0], "instead": {"model": models[1:]}}
    found = price_loop(loop(part, budget=between))
    assert not found.fits
    assert [cost.part.model for cost in found.fitting] == [models[1]]
    assert found.changed_s == pytest.approx(turns[1])
    assert found.least[0].part.model == models[2]
    none = price_loop(loop(part, budget="1 ms"))
    assert (none.fitting, none.least[0].part.model) == ((), models[2])


def test_an_alternative_that_cannot_be_priced_is_noted() -> None:
    part = {**THINK, "model": "Qwen/Qwen3-8B", "instead": {"model": ["Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-0.6B"]}}
    found = price_loop(loop(part, budget="300 ms"))
    assert [cost.part.model for cost in found.fitting] == ["Qwen/Qwen3-0.6B"]
    assert any("Qwen3-235B-A22B" in note for note in found.notes)


def test_the_best_move_is_the_part_and_chip_with_the_shortest_turn() -> None:
    """Each move is the loop with that part's device changed; of all, the shortest is named, useful or not."""
    other = {**THINK, "name": "look", "prompt": 500, "device": "t4"}
    found = price_loop(replace(loop(THINK, other), chips=("rtx-4090",)))
    moves = [("think", "rtx-4090"), ("think", "t4"), ("look", "rtx-4090"), ("look", "l4")]
    turns = {}
    for name, device in moves:
        parts = [{**part, "device": device} if part["name"] == name else part for part in (THINK, other)]
        turns[name, device] = price_loop(loop(*parts)).total.value
    best = min(turns, key=turns.__getitem__)
    assert (found.move.part, found.move.device) == best
    assert found.move.total.value == pytest.approx(turns[best])
    assert f"move {best[0]} to {best[1]}: a turn then takes" in found.to_move()
    assert found.to_move().endswith("and fits into 1 s")
    slower = price_loop(replace(loop(THINK), chips=("raspberry-pi-5",)))
    assert slower.to_move().startswith("move no part: the best move is think to raspberry-pi-5")
    assert price_loop(loop(THINK)).to_move() is None  # there is no other chip


def test_a_chip_that_cannot_hold_a_part_is_noted() -> None:
    found = price_loop(replace(loop({**THINK, "model": "Qwen/Qwen3-8B"}), chips=("raspberry-pi-3", "rtx-4090")))
    assert found.move.device == "rtx-4090"
    assert any(note.startswith("think cannot move to raspberry-pi-3: ") for note in found.notes)
    with pytest.raises(SpecError, match=r"chips: .*rtx-4091"):
        price_loop(replace(loop(THINK), chips=("rtx-4091",)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": []}, "parts: must have at least one part"),
        ({"parts": [{"name": "a"}]}, r"parts\[0\].model: a part needs either a model or a measured time"),
        ({"parts": [{"name": "a", "time": "1 s"}, {"name": "a", "time": "1 s"}]}, "two parts have the same name"),
        ({"parts": [{"name": "a", "time": "1 s", "instead": {"model": ["gpt2"]}}]}, "instead.model: cannot have"),
        ({"parts": [{**THINK, "instead": {"wieghts": ["int4"]}}]}, "instead.wieghts: cannot have alternatives"),
        ({"parts": [{**THINK, "tokens": 3}]}, "tokens: unknown field"),
        ({"budget": "0 s"}, "budget: must be above zero"),
        ({"device": None}, r"parts\[0\].device: this part has no device"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_yaml(tmp_path / "loop.yaml", {"budget": "1 s", "device": "l4", "parts": [THINK]} | change)
    with pytest.raises(SpecError, match=words):
        read_loop(tmp_path / "loop.yaml")


def test_parts_that_cannot_be_priced_are_named() -> None:
    with pytest.raises(SpecError, match=r"parts\.think: .*needs"):
        price_loop(loop({**THINK, "model": "Qwen/Qwen3-235B-A22B"}))
    with pytest.raises(SpecError, match="image_size"):
        price_loop(loop({**THINK, "model": "Qwen/Qwen2-VL-2B-Instruct", "images": 1, "image_size": "wide"}))


def test_the_command_answers_for_the_example() -> None:
    found = CliRunner().invoke(app, ["agent", str(EXAMPLE)])
    assert found.exit_code == 0, found.output
    assert "think takes" in found.output
    data = json.loads(CliRunner().invoke(app, ["agent", str(EXAMPLE), "--json"]).output)
    assert [row["part"] for row in data["rows"]] == ["perceive", "think", "act"]
    assert data["fits"] is False
    assert sum(row["turn_s"] for row in data["rows"]) == pytest.approx(data["total"]["value"], rel=0.02)
    assert data["total"]["value"] < data["p99_s"]["value"] < sum(row["p99_s"] for row in data["rows"])


def test_what_a_parts_device_was_taken_for_is_said_once() -> None:
    found = price_loop(loop({**THINK, "device": "m4 max 64GB"}, {**THINK, "name": "act", "device": "m4 max 64GB"}))
    assert found.notes == ("m4 max 64GB: apple-m4-max with 64 GB of memory instead of 128 GB",)

"""An agent's loop: times of parts add up, the largest is named, alternatives are tried in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_parts_and_their_calls_add() -> None:
    """Two calls are twice one; a measured time counts as it is; ends of intervals add too."""
    one = price_loop(loop(THINK))
    both = price_loop(loop({**THINK, "calls": 2}, {"name": "act", "time": "30 ms", "calls": 3}))
    alone = api.estimate("Qwen/Qwen3-0.6B", device="l4", prompt=200, new=20)
    assert one.total.value == pytest.approx(alone.ttft_s + 19 * alone.tpot_s)
    assert both.total.value == pytest.approx(2 * one.total.value + 0.09)
    assert one.total.low is None or one.total.low < one.total.value < one.total.high
    assert both.parts[1].turn_s.low == both.parts[1].turn_s.high == pytest.approx(0.09)
    assert both.largest.part.name == ("think" if 2 * one.total.value > 0.09 else "act")


def test_the_p99_of_a_turn_adds_what_exceeds_the_medians_in_squares() -> None:
    """Measured parts by hand: 3 s and 4 s above their medians make 5; four calls of one part double what one adds."""
    sense = {"name": "sense", "time": "1 s", "time_p99": "4 s"}
    act = {"name": "act", "time": "2 s", "time_p99": "6 s"}
    assert price_loop(loop(sense, act)).p99_s.value == pytest.approx(3 + 5)  # the sum of both P99s is 10
    assert price_loop(loop({**sense, "calls": 4})).p99_s.value == pytest.approx(4 + 2 * 3)
    assert price_loop(loop({"name": "fixed", "time": "1 s"})).p99_s.value == pytest.approx(1)
    found, alone = price_loop(loop(THINK)), api.estimate("Qwen/Qwen3-0.6B", device="l4", prompt=200, new=20).metrics
    above = [alone[f"{name}_p99"].value - alone[f"{name}_p50"].value for name in ("ttft", "tpot")]
    assert found.p99_s.value == pytest.approx(found.total.value + (above[0] ** 2 + (19 * above[1]) ** 2) ** 0.5)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({**THINK, "time_p99": "1 s"}, "time_p99.*is the P99 of a measured time"),
        ({"name": "act", "time": "2 s", "time_p99": "1 s"}, "time_p99.*must be at least the median of 2 s"),
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
    turns = [price_loop(loop({**THINK, "model": model})).total.value for model in models]
    assert turns == sorted(turns, reverse=True)
    between = f"{1000 * (turns[0] + turns[1]) / 2} ms"
    part = {**THINK, "model": models[0], "instead": {"model": models[1:]}}
    found = price_loop(loop(part, budget=between))
    assert not found.fits
    assert [cost.part.model for cost in found.fitting] == [models[1]]
    assert found.least[0].part.model == models[2]
    none = price_loop(loop(part, budget="1 ms"))
    assert (none.fitting, none.least[0].part.model) == ((), models[2])


def test_an_alternative_that_cannot_be_priced_is_noted() -> None:
    part = {**THINK, "model": "Qwen/Qwen3-8B", "instead": {"model": ["Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-0.6B"]}}
    found = price_loop(loop(part, budget="300 ms"))
    assert [cost.part.model for cost in found.fitting] == ["Qwen/Qwen3-0.6B"]
    assert any("Qwen3-235B-A22B" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": []}, "parts: a loop has at least one part"),
        ({"parts": [{"name": "a"}]}, r"parts\[0\].model: a part needs either a model or a measured time"),
        ({"parts": [{"name": "a", "time": "1 s"}, {"name": "a", "time": "1 s"}]}, "parts need different names"),
        ({"parts": [{"name": "a", "time": "1 s", "instead": {"model": ["gpt2"]}}]}, "instead.model: cannot have"),
        ({"parts": [{**THINK, "instead": {"wieghts": ["int4"]}}]}, "instead.wieghts: cannot have alternatives"),
        ({"parts": [{**THINK, "tokens": 3}]}, "tokens: unknown field"),
        ({"budget": "0 s"}, "budget: must be above zero"),
        ({"device": None}, r"parts\[0\].device: name a device"),
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
    assert sum(row["turn_s"] for row in data["rows"]) == pytest.approx(data["total"]["value"])


def test_what_a_parts_device_was_taken_for_is_said_once() -> None:
    found = price_loop(loop({**THINK, "device": "m4 max 64GB"}, {**THINK, "name": "act", "device": "m4 max 64GB"}))
    assert found.notes == ("m4 max 64GB: apple-m4-max with 64 GB of memory instead of 128 GB",)

"""What a plan, a simulation or an agent's loop cannot mean is refused in one line that names the field."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import chipwise
from chipwise.core.files import build, write_yaml
from chipwise.design.fleet.agent_loop import AgentLoop
from chipwise.design.fleet.evaluating import Evaluator
from chipwise.design.fleet.question import FleetQuestion, question_from, read_question
from chipwise.errors import ChipwiseError, InputError, SpecError

ASKED: dict[str, Any] = {"model": "gpt2", "rate": "2/s", "devices": "l4, a10"}
DIGITS = int("9" * 300)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": []}, "classes: must name at least one"),
        ({"classes": [{"name": "a"}, {"name": "a"}]}, "classes: two classes are called 'a'"),
        ({"classes": [{"spread": 1e9}]}, r"classes\[0\]\.spread: must be from 0 to 10"),
        ({"classes": [{"prefixes": 10**12, "shared": 9}]}, r"classes\[0\]\.prefixes: must be at most 2,000,000"),
        ({"classes": [{"prefixes": 4}]}, r"classes\[0\]\.prefixes: .* shared_tokens"),
        ({"prices": {"l4": "-1 USD/h"}}, r"prices\.l4: must be above zero, not -\$1.00/h"),
        ({"prices": {"l4": "0 USD/h"}}, r"prices\.l4: must be above zero"),
        ({"prices": {"l4": 0.8}}, r"prices\.l4: 0\.8 has no unit"),
        ({"prices": {"lv4": "1 USD/h"}}, r"unknown device 'lv4'; did you mean .*'l4'"),
        ({"prices": {"l40s": "1 USD/h"}}, r"prices\.l40s: l40s is not among the devices, l4, a10"),
        ({"prices": {"l4": "1 USD/h", "L4": "2 USD/h"}}, r"prices\.L4: l4 has two prices"),
        ({"devices": "l4, l4"}, "devices: l4 is named twice"),
        ({"devices": "l4, nvidia-l4"}, "devices: l4 is named twice, as l4 and as nvidia-l4"),
        ({"devices": ","}, "devices: is an empty list"),
        ({"devices": 3.5, "prices": {"l4": "1 USD/h"}}, "devices: must be a list of names, not a number"),
        ({"seed": -1, "classes": [{"prompt": 100}]}, "seed: must be at least 0, not -1"),
        ({"classes": [{"share": 1e308}, {"share": 1e308}]}, r"classes\[0\]\.share: must be more than 0 and at most"),
        ({"class_limits": {"requests": {"ttft": "1 s"}}}, r"class_limits\.requests\.ttft: no limit has this name"),
        ({"class_limits": {"requests": 3}}, r"class_limits\.requests: must be a mapping"),
        (
            {"classes": [{"name": "a", "limits": {"ttft_p99": 1}}], "class_limits": {"a": {"ttft_p99": "2 s"}}},
            r"class_limits\.a\.ttft_p99: is given both here and in the class",
        ),
        ({"fleets": 7}, "fleets: must be a list of names, not a whole number"),
        ({"devices": [3]}, r"devices\[0\]: must be the name of a device"),
        ({"budget": "-3 USD/h"}, "budget: must be above zero"),
        ({"power": "0 W"}, "power: must be above zero"),
        ({"link": "0 GB/s"}, "link: must be above zero"),
        ({"burstiness": 5}, "burstiness: only applies to gamma arrivals, but `arrivals` is 'poisson'"),
        ({"rate": DIGITS}, "rate: must be above 0 and at most"),
        ({"limits": {"ttft_p99": 10**309}}, r"limits\.ttft_p99: .* is too large"),
        ({"trace": "log.jsonl"}, "rate: the trace sets this field too"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Evaluator(question_from(ASKED | fields))


def test_limits_of_classes_stand_in_the_class_or_beside_it() -> None:
    kinds = [{"name": "a", "limits": {"ttft_p99": "1 s"}}, {"name": "b"}]
    beside = {"a": {"e2e_p99": "9 s"}, "b": {"tpot_p50": "40 ms"}}
    found = question_from(ASKED | {"classes": kinds, "class_limits": beside})
    assert found.class_limits == {"a": {"e2e_p99": 9.0, "ttft_p99": 1.0}, "b": {"tpot_p50": 0.04}}


def test_numbers_that_no_float_holds_are_refused_where_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(f"model: gpt2\nrate: {'9' * 400}\n")
    with pytest.raises(SpecError, match=r"q\.yaml: .*a number of 400 digits"):
        read_question(path)


def test_names_of_devices_and_of_prices_may_differ() -> None:
    """A price counts for its device whatever of its names is used."""
    found = question_from(ASKED | {"devices": "L4, a10", "prices": {"nvidia-l4": "0.1 USD/h"}})
    assert found.devices == ("l4", "a10")
    assert found.prices == {"l4": pytest.approx(0.1 / 3600)}


def test_a_data_sheet_of_ones_own_is_planned_with(tmp_path: Path) -> None:
    sheet = Path(chipwise.__file__).parent / "hardware" / "data" / "l4.yaml"
    own = tmp_path / "mine.yaml"
    own.write_text(sheet.read_text().replace("name: l4\n", "name: mine\n", 1))
    found = chipwise.plan(
        "gpt2", rate=2, prompt=200, new=20, devices=[str(own)], prices={str(own): "0.1 USD/h"}, tp=[1],
        weights=["bf16"], requests=50,
    )  # fmt: skip
    assert found.best.usd_per_h == pytest.approx(0.1)


def test_several_models_are_not_one_question(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    write_yaml(path, {"rate": "2/s", "devices": "l4", "models": [{"model": "gpt2"}]})
    with pytest.raises(SpecError, match=r"chain\.yaml: models: must be one model; for several"):
        chipwise.plan(path)


SIMULATED: dict[str, Any] = {"device": "l4", "rate": "2/s", "prompt": 200, "new": 20, "requests": 50, "seeds": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"think_s": -1.0, "clients": 2, "rate": None}, "think_s: must be from 0 to 86,400 s, not -1 s"),
        ({"think_s": 1.0}, "think_s: only applies to clients"),
        ({"link": "5 GB/s"}, "link: applies only to separate prefill and decode; set decode_device"),
        ({"decode_tp": 2}, "decode_tp: applies only to separate prefill and decode"),
        ({"decode_replicas": 2}, "decode_replicas: applies only to separate prefill and decode"),
        ({"link": "0 GB/s", "decode_device": "l4"}, "link: must be above zero"),
        ({"spread": 1e9}, "spread: must be from 0 to 10"),
        ({"burstiness": 5.0}, "burstiness: only applies to gamma arrivals"),
        ({"prefixes": 10**12, "shared_tokens": 9}, "prefixes: must be at most 2,000,000"),
        ({"draft": "gpt2"}, "draft: needs `drafted` too: the number of tokens to draft in each step"),
        ({"batching": "requests"}, "batching: gpt2 generates"),
        ({"dp": 4}, "dp: dp copies of gpt2 share neither experts nor tables; set replicas=4"),
        ({"request_s": 1e300}, r"request_s: must be from 0 to 86,400 s, not 1e\+300 s"),
        ({"step_scale": 1e300}, "step_scale: must be from 0.01 to 100"),
        ({"timeout_s": 1e308}, r"timeout_s: must be more than 0 and at most 86,400 s"),
        ({"acceptance": 7.0}, "acceptance: must be from 0 to 1, not 7"),
        ({"decode_tp": 0}, "decode_tp: must be at least 1"),
        ({"rate": 1e-300}, "rate: must be at least one request in 10 days, not 1e-300"),
        ({"clients": 10**12, "rate": None}, "clients: must be at most"),
    ],
)
def test_a_simulation_that_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        chipwise.simulate("gpt2", **SIMULATED | fields)


def test_texts_beyond_an_encoders_positions_are_refused() -> None:
    """MiniLM has 512 learned positions: what a text of 100,000 takes is nothing that can be said."""
    for ask in (chipwise.simulate, chipwise.plan):
        where = {"device": "l4"} if ask is chipwise.simulate else {"devices": "l4"}
        with pytest.raises(SpecError, match="100,000 tokens exceed"):
            ask("sentence-transformers/all-MiniLM-L6-v2", rate="2/s", prompt=100_000, **where)
    found = chipwise.simulate("sentence-transformers/all-MiniLM-L6-v2", **SIMULATED | {"prompt": 512})
    assert found.times["ttft_p99"].value > 0


def test_nothing_is_resumed_without_a_file() -> None:
    with pytest.raises(SpecError, match="resume: needs `out` too: the file from which"):
        chipwise.plan("gpt2", rate=2, prompt=200, devices=["l4"], resume=True)


def test_drafts_without_a_model_are_said_to_be_copied() -> None:
    found = chipwise.simulate("gpt2", **SIMULATED, drafted=4)
    assert "4 tokens drafted by n-grams" in found.label
    assert any("n-grams copied from the text" in note for note in found.notes)
    named = chipwise.simulate("gpt2", **SIMULATED, drafted=4, draft="ngram")
    assert named.times == found.times


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"time": "-40 ms"}, r"parts\[0\]\.time: must be above zero"),
        ({"time": "0 s"}, r"parts\[0\]\.time: must be above zero"),
        ({"time": "40"}, r"parts\[0\]\.time: .* has no unit"),
        ({"time": "40 ms", "instead": {"calls": [1, -2]}}, r"parts\[0\]\.instead\.calls\[1\]: must be at least 1"),
        ({"model": "gpt2", "device": "l4", "images": -1}, r"parts\[0\]\.images: must be at least 0"),
        ({"time": "40 ms", "calls": 10**30}, r"parts\[0\]\.calls: must be at most 1,000,000,000"),
    ],
)
def test_a_part_that_takes_no_time_or_is_called_without_end_is_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ChipwiseError, match=message):
        build(AgentLoop, {"budget": "2 s", "parts": [{"name": "act", **part}]})


def test_every_key_of_a_question_is_in_its_page() -> None:
    """Keys as people write them, where a file has its own for what the question holds in SI units."""
    written = {"rate_per_s": "rate", "link_bytes_per_s": "link", "power_w": "power", "usd_per_s": "budget"}
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "plan-a-fleet.md").read_text(encoding="utf-8")
    keys = {key for line in page.splitlines() if line.startswith("| `") for key in re.findall(r"`(\w+)`", line)}
    assert {written.get(each.name, each.name) for each in dataclasses.fields(FleetQuestion)} <= keys


def test_degrees_are_named_as_on_the_command_line_and_their_former_names_are_read() -> None:
    words = {"model": "gpt2", "rate": 1}
    today = question_from({**words, "tp": [1, 2], "pp": 2, "ep": [4], "dp": [1, 8]})
    assert (today.tp, today.pp, today.ep, today.dp) == ((1, 2), (2,), (4,), (1, 8))
    former = {"degrees": [1, 2], "stages": [2], "experts": [4], "copies": [1, 8]}
    assert question_from({**words, **former}) == today
    with pytest.raises(SpecError, match="degrees: is the former name of tp"):
        question_from({**words, "degrees": [1], "tp": [1]})


def test_a_question_that_is_a_value_says_all_and_what_is_given_beside_it_is_refused() -> None:
    question = question_from({"model": "gpt2", "rate": 1})
    for name, value in (("rate", 5), ("trace", "t.jsonl"), ("limits", {"ttft_p99": "1 s"}), ("kv", "fp8")):
        with pytest.raises(SpecError, match=f"{name}: is already set in the question"):
            chipwise.plan(question, **{name: value})


@pytest.mark.parametrize(
    "option", [{"tp": [1]}, {"tp": (1, 2, 4, 8)}, {"prompt": 1024}, {"fleets": ("together",)}, {"seed": 0}]
)
def test_what_a_question_file_states_is_refused_at_its_default_too(tmp_path: Path, option: dict[str, object]) -> None:
    file = tmp_path / "question.yaml"
    write_yaml(file, ASKED)
    with pytest.raises(SpecError, match=f"{next(iter(option))}: is already set in the question file"):
        chipwise.plan(file, **option)

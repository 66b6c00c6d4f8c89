"""Run files that start from a model: shares of the original, what each field may say, and what the run's name means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec, any_spec, load_any
from chipwise.errors import SpecError
from chipwise.model.arch.arch import uniform

FIELDS = {
    "name": "small",
    "start_from": "model",
    "workload": {"prompt_tokens": 8, "new_tokens": 4, "batch": 2},
    "constraints": {"ttft_p50": "<= 60 % of original"},
    "data": {},
}
DECODER = uniform(vocab_size=100, d_model=16, depth=1, heads=1, ffn_width=16, max_tokens=12)


def spec(**changes: object) -> StartSpec:
    found = any_spec({**FIELDS, **changes}, file="run.yaml")
    assert isinstance(found, StartSpec)
    return found


def test_shares_become_limits_once_the_original_is_known() -> None:
    asked = spec(
        constraints={
            "ttft_p50": "<= 60 % of original",
            "tpot_p99": "< 12.5% of the original",
            "spearman@original": "≥ 90 % of original",
            "peak_memory": "<= 100 MB",
        }
    )
    assert [(item.metric, item.op, item.limit) for item in asked.limits({})] == [("peak_memory", "<=", 100e6)]
    found = asked.limits({"ttft_p50": 5e-3, "tpot_p99": 2e-3, "spearman@original": 0.8, "peak_memory": 1.0})
    assert {item.metric: (item.op, pytest.approx(item.limit)) for item in found} == {
        "peak_memory": ("<=", 100e6),
        "ttft_p50": ("<=", 3e-3),
        "tpot_p99": ("<=", 0.25e-3),
        "spearman@original": (">=", 0.72),
    }
    assert {item.metric: item.text for item in found}["tpot_p99"] == "< 12.5% of the original"
    assert [item.metric for item in asked.limits({"ttft_p50": 1.0})] == ["peak_memory", "ttft_p50"]


def test_floors_are_those_of_the_files_own_tasks() -> None:
    asked = spec(
        tasks=["mine.csv"],
        constraints={
            "accuracy@mine": ">= 60 %",
            "spearman@original": ">= 0.5",
            "ttft_p50": "<= 2 ms",
            "accuracy@original": ">= 90 % of original",
        },
    )
    assert [(item.metric, item.limit) for item in asked.floors] == [("accuracy@mine", 0.6)]


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "a\0b", ".hidden"])
def test_a_name_must_be_able_to_name_a_folder(name: str) -> None:
    with pytest.raises(SpecError, match="cannot name a folder"):
        spec(name=name)
    assert spec(name="a.b-c_1").name == "a.b-c_1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": "int3"}, "weights: unknown format 'int3'"),
        ({"target": {"threads": 2}}, "target: cuts are timed in onnxruntime on one thread"),
        ({"target": {"runtime": "llama.cpp"}}, "target: cuts are timed in onnxruntime on one thread"),
        ({"target": {"power": "15 W"}}, "target.power: runs that cut a model do not support this"),
        ({"target": {"price": "1 USD/h"}}, "target.price: runs that cut a model do not support this"),
        (
            {"quality": {"method": "supernet"}},
            "quality: cuts are chosen only by losses of single blocks",
        ),
        ({"tasks": ["a.csv", "b/a.csv"]}, "tasks: names must differ"),
        ({"tasks": ["original.csv"]}, "tasks: names must differ, and none may be 'original'"),
        ({"constraints": {"watts": "<= 5 % of original"}}, "constraints.watts: cuts are not evaluated by this metric"),
        ({"constraints": {"ttft_p50": {"limit": "<= 3 ms", "penalty": "5 %"}}}, "limits of a cut must be hard"),
        ({"constraints": {"ttft_p50": ">= 5 % of original"}}, "ttft_p50: '>= 5 % of original' has the wrong direction"),
        (
            {"constraints": {"ttft_p50": "<= 1 ms", "spearman@original": "<= 5 % of original"}},
            "spearman@original: '<= 5 % of original' has the wrong direction",
        ),
        (
            {"constraints": {"ttft_p50": "<= 1 ms", "accuracy@mine": ">= 5 % of original"}},
            "accuracy@mine: 'mine' is not listed under `tasks`",
        ),
        ({"constraints": {"ttft_p50": ">= 3 ms"}}, "'>= 3 ms' is a lower bound; write an upper one"),
        ({"constraints": {"bits_per_byte": "<= 2"}}, "constraints: limit at least one of ttft_p50, ttft_p99"),
        ({"constraints": {}}, "constraints: limit at least one of ttft_p50, ttft_p99"),
        ({"constraints": {"ttft_p50": "<= 0 % of original"}}, "constraints.ttft_p50: the share must be positive"),
        ({"space": {}}, "space: contradicts start_from: the model in start_from determines"),
        ({"targets": []}, "targets: contradicts start_from"),
        (
            {"task": "vision"},
            "task: a run from a model cuts text models only; cut this one with: chipwise shrink",
        ),
        ({"objectives": {}}, "objectives: contradicts start_from"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        spec(**changes)
    assert said in str(raised.value)


def test_one_format_in_a_list_is_that_format_as_a_space_has_it() -> None:
    assert spec(weights=["int8"]).weights == "int8"
    assert spec(weights="int4").weights == "int4"
    with pytest.raises(SpecError, match="weights"):
        spec(weights=["int8", "int4"])


def test_everything_but_the_budget_and_the_place_makes_another_run() -> None:
    asked = spec()
    assert replace(asked, folder="/elsewhere").identity == asked.identity
    assert spec(budget={"cpu": "3 h", "workers": 1}).identity == asked.identity
    for change in ({"seed": 1}, {"weights": "int8"}, {"constraints": {"ttft_p50": "<= 1 ms"}}):
        assert spec(**change).identity != asked.identity


def test_the_model_is_a_folder_beside_the_file_or_inside_a_package() -> None:
    assert replace(spec(), folder="/runs").source == Path("/runs/model")
    assert spec(start_from="package:json/deep/model").source == Path(json.__file__).parent / "deep" / "model"
    for name in ("nowhere_at_all", "json.decoder", "sys"):  # not there, no name, and no folder
        with pytest.raises(SpecError, match=f"start_from: no package '{name}' is installed"):
            _ = spec(start_from=f"package:{name}/model").source


def test_a_decoder_keeps_prompt_and_answer_and_has_no_rank_correlation_of_its_own() -> None:
    spec().require_kind(DECODER)  # 8 + 4 = 12 positions
    with pytest.raises(SpecError, match=r"workload: needs 12 tokens; model takes at most 11"):
        spec().require_kind(replace(DECODER, max_tokens=11))
    asked = spec(constraints={"ttft_p50": "<= 1 ms", "spearman@original": ">= 0.5"})
    with pytest.raises(SpecError, match="only valid for encoders"):
        asked.require_kind(DECODER)


def test_either_kind_of_file_is_read_and_knows_its_folder(tmp_path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(FIELDS))
    found = load_any(path)
    assert isinstance(found, StartSpec)
    assert found.source == tmp_path / "model"
    path.write_text(yaml.safe_dump({**FIELDS, "folder": "/elsewhere"}))
    with pytest.raises(SpecError, match="folder: unknown field"):
        load_any(path)
    plainly = {name: value for name, value in FIELDS.items() if name not in ("start_from", "constraints")}
    space = {
        "d_model": [32],
        "depth": [1],
        "vocab_size": [512],
        "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [64]},
    }
    path.write_text(yaml.safe_dump({**plainly, "space": space}))
    searched = load_any(path)
    assert isinstance(searched, RunSpec)
    assert searched.folder == str(tmp_path)

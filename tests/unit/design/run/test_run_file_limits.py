"""Values of a run file that no search can use: refused at once, by file and field."""

from __future__ import annotations

from typing import Any

import pytest
from test_run_spec_tasks import PLAIN

from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError


def spec_with(path: str, value: object) -> Any:
    outer, _, last = path.partition(".")
    return run_spec({**PLAIN, outer: {**PLAIN.get(outer, {}), last: value}}, file="toy.yaml")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("workload.prompt_tokens", {"p50": 16, "p99": 10}, "the P99 of prompts must be above their P50 of 16"),
        ("workload.prompt_tokens", {"p50": 64}, "write a number, or the P50 and P99"),
        ("workload.prompt_tokens", {"p50": 64, "p99": "many"}, "many"),
        ("workload.batch", 10**9, "must be at most 1,000,000, not 1000000000"),
        ("workload.new_tokens", 10**9, "must be at most 100,000,000"),
        ("target.threads", 10**6, "must be at most 1,024, not 1000000"),
        ("target.power", 15, "15 has no unit; write a number and a unit, such as 15 W"),
        ("target.price", "0.1", "no unit; write a number and a unit, such as 0.1 USD/h"),
        ("budget.cpu", 900, "900 has no unit; write a number and a unit, such as 900 s"),
        ("budget.workers", 10**6, "must be at most 1,024"),
        ("constraints.mbu", ">= 120 %", "is at most 100 %, not 120 %"),
        ("constraints.mbu", ">= 35 W", "W"),
        ("constraints.power", 15, "15 is not a limit; write one such as '<= 3 ms'"),
        ("constraints.power", "<= 15", "'15' has no unit; write a number and a unit, such as 15 W"),
        ("space.depth", [10_000], "at most 128 layers, not 10000"),
        ("space.depth", [10**6], "at most 128 layers"),
        ("space.depth", [1, 1], "a value is listed twice"),
        ("space.d_model", list(range(8, 16_008, 8)), "lists 2,000 values; at most 1,000 may be listed"),
        ("space.weights", ["fp32", "fp16"], "evaluated and exported in fp32, int8, int4, not in fp16"),
        ("space.d_model", [10**40], "at most 1,000,000,000"),
    ],
)
def test_a_value_that_no_search_can_use_is_named(path: str, value: object, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_with(path, value)
    assert str(caught.value).startswith(f"toy.yaml: {path}: ")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("name", ["a", "a.b", "x-1", "a run"])
def test_names_that_can_name_a_folder_are_taken(name: str) -> None:
    assert run_spec({**PLAIN, "name": name}, file="toy.yaml").name == name


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a\\b", "a\nb"])
def test_names_that_cannot_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"toy\.yaml: name: .* cannot name a folder"):
        run_spec({**PLAIN, "name": name}, file="toy.yaml")


def test_limits_on_other_devices_are_on_metrics_of_their_own() -> None:
    asked = {"device": "h100", "constraints": {"tpot_p50": "<= 3 ms", "peak_memory": "<= 1 GB"}}
    other = {"device": "raspberry-pi-5", "constraints": {"tpot_p50": "<= 0.1 s"}}
    found = run_spec({**PLAIN, "targets": [asked, other]}, file="toy.yaml")
    assert [(limit.metric, limit.limit) for limit in found.limits_elsewhere] == [
        ("tpot_p50@h100-sxm", 3e-3),
        ("peak_memory@h100-sxm", 1e9),
        ("tpot_p50@raspberry-pi-5", 0.1),
    ]


def test_a_limit_that_a_data_sheet_cannot_answer_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"targets\[0\].constraints.tpot_sustained: data sheets do not predict this metric"
    ):
        run_spec({**PLAIN, "targets": [{"device": "l4", "constraints": {"tpot_sustained": "<= 1 s"}}]}, file="toy.yaml")

"""Plans as files: resumed without new replays, compared, checked against load tests of three tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chipwise
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.load_tests import check, read_load_test
from chipwise.design.fleet.plan_files import known_of, read_plan
from chipwise.design.fleet.plan_page import write_plan_page, write_simulation
from chipwise.errors import SpecError

ASKED = {"devices": ["l4"], "tp": [1], "weights": ["bf16"], "requests": 60, "limits": {"ttft_p99": "1 s"}}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    chipwise.plan("Qwen/Qwen3-0.6B", rate=20, prompt=200, new=40, out=path, **ASKED)
    return path


def test_a_plan_is_resumed_without_a_new_replay(plan_file: Path) -> None:
    question = read_plan(plan_file).question
    assert question.rate_per_s == 20
    finder = Finder(question, known=known_of(plan_file, question))
    assert finder.found()[0].replicas == json.loads(plan_file.read_text())["answer"]["options"][0]["replicas"]
    assert finder.evaluator.replays == 0


def test_a_plan_of_another_load_is_not_resumed(plan_file: Path) -> None:
    with pytest.raises(SpecError, match=r"another question \(classes differ\)"):
        chipwise.plan("Qwen/Qwen3-0.6B", rate=20, prompt=300, new=40, out=plan_file, resume=True, **ASKED)


VLLM = {
    "mean_ttft_ms": 50.0,
    "median_ttft_ms": 40.0,
    "p99_ttft_ms": 5000.0,
    "mean_tpot_ms": 6.0,
    "median_itl_ms": 5.0,
    "p99_itl_ms": 900.0,
    "request_throughput": 19.8,
}
INFERENCE_PERF = {
    "successes": {
        "latency": {
            "time_to_first_token": {"mean": 0.05, "p50": 0.04, "p99": 5.0},
            "time_per_output_token": {"mean": 0.006},
            "inter_token_latency": {"median": 0.005, "p99": 0.9},
            "request_latency": {"mean": 0.3},
        },
        "throughput": {"requests_per_sec": 19.8},
    }
}
GENAI_PERF = {
    "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 40.0, "p99": 5000.0},
    "inter_token_latency": {"unit": "ms", "avg": 6.0},
    "request_throughput": {"unit": "requests/sec", "avg": 19.8},
}


@pytest.mark.parametrize(
    ("tool", "results"),
    [("vllm bench serve", VLLM), ("inference-perf", INFERENCE_PERF), ("genai-perf", GENAI_PERF)],
)
def test_load_tests_of_three_tools_say_what_held(
    plan_file: Path, tmp_path: Path, tool: str, results: dict[str, object]
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    found = check(plan_file, path)
    assert found.tool == tool
    assert found.rate_measured_per_s == 19.8
    held = {each.metric: each for each in found.rows_held}
    assert held["ttft_p99"].measured == 5.0
    assert held["ttft_p99"].meets_limit is False
    assert not held["ttft_p99"].inside
    gaps = [] if tool == "genai-perf" else [0.005, 0.9]  # its inter-token latency is a mean of each request
    assert [held[name].measured for name in ("itl_p50", "itl_p99") if name in held] == gaps
    promised = json.loads(plan_file.read_text())["answer"]["options"][0]["times"]
    assert found.step_scale == pytest.approx(0.006 / promised["tpot_mean"]["value"])
    late = 0.05 - found.step_scale * promised["ttft_mean"]["value"]
    assert found.request_s == pytest.approx(max(late, 0.0))


def test_what_is_learned_brings_a_simulation_to_what_was_measured(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"mean_ttft_ms": 90.0, "mean_tpot_ms": 8.0}))
    learned = check(plan_file, path)
    found = chipwise.simulate(
        "Qwen/Qwen3-0.6B", device="l4", rate=0.2, prompt=200, new=40, requests=20, seeds=1,
        step_scale=learned.step_scale, request_s=learned.request_s,
    )  # fmt: skip
    assert found.times["ttft_mean"].value == pytest.approx(0.09, rel=0.15)
    assert found.times["tpot_mean"].value == pytest.approx(0.008, rel=0.3)


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{" * 5000])
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"results\.json"):
        read_load_test(path)
    with pytest.raises(SpecError, match="is not a plan file"):
        read_plan(path)


def test_pages_are_written_whole(plan_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    plan = chipwise.plan("Qwen/Qwen3-0.6B", rate=20, prompt=200, new=40, **ASKED)
    write_plan_page(plan, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert all(f'id="plot-{key}"' in page for key in ("front", "rate", "life", "state"))
    found = chipwise.simulate("Qwen/Qwen3-0.6B", device="l4", rate=5, requests=50, seeds=1)
    write_simulation(found, tmp_path / "simulation.html")
    assert 'id="plot-state"' in (tmp_path / "simulation.html").read_text()

"""Runs under load: what is read of them, and that predictions use their loads alone."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise_fitting.commands import validate
from chipwise_fitting.load import Constants, _predicted
from chipwise_fitting.load_runs import (
    Experiment,
    StageLoad,
    answers,
    device_of,
    load_of,
    recorded,
    workload_of,
)  # fmt: skip

MODEL = "Qwen/Qwen3-0.6B"


def folder(tmp_path: Path, *, measured: float = 1000.0) -> Path:
    """A table of one run of two stages, percentiles of the same workload, and a run of two recorded requests."""
    runs = [
        {
            "run": "a-qwen-tp1-codegen", "stage": stage, "device": "h100-sxm", "model": MODEL, "tp": 1,
            "rate_per_s": 5 * (stage + 1), "requests": 50, "prompt_tokens_mean": 591, "output_tokens_mean": 240,
            "output_tokens_median": 248, "output_tokens_p90": 249, "output_tokens_p99": 249,
            "prefix_num_unique_system_prompts": 11, "prefix_num_users_per_system_prompt": 4,
            "e2e_s_mean": measured / 1e3, "ttft_s_mean": 0.02,
        }
        for stage in (0, 1)
    ]  # fmt: skip
    metrics = ("e2e_mean", "ttft_p99", "itl_mean")
    rows = [
        {"experiment": name, "stage": stage, "metric": metric, "model": MODEL, "workload": "codegen",
         "hardware": "L40S", "tp": 1, "max_num_batched_tokens": 2048, "actual": measured}
        for name in ("7-qwen-tp1-codegen-1", "a-qwen-tp1-codegen") for stage in (-1, 0, 1) for metric in metrics
    ]  # fmt: skip
    for name, table in (("load_runs.csv", runs), ("load_percentiles.csv", rows)):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
    place = tmp_path / "requests" / "RTX4090-Qwen3-0.6B"
    place.mkdir(parents=True)
    settings = {"model": MODEL, "engine_kwargs": {"tensor_parallel_size": 1, "max_num_seqs": 8}}
    (place / "meta.json").write_text(json.dumps(settings))
    lines = [
        {"request_id": f"r{i}", "input_toks": 100, "output_toks": 20, "arrival_time": 5.0 + i, "queued_ts": 7.0 + i,
         "first_token_ts": 7.1 + i, "last_token_ts": 7.5 + i}
        for i in range(2)
    ]  # fmt: skip
    (place / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_every_row_of_every_table_is_answered(tmp_path: Path) -> None:
    truth = folder(tmp_path)
    scores = validate("load", truth, tmp_path / "out.csv", leave_out="none")
    assert scores[0].answered == 1
    assert "BLIS" in scores[0].note
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"experiment", "stage", "metric", "value", "low_value", "high_value"} == set(rows[0])
    assert {row["experiment"] for row in rows} == {"a-qwen-tp1-codegen", "7-qwen-tp1-codegen-1", "RTX4090-Qwen3-0.6B"}
    assert all(float(row["low_value"]) < float(row["value"]) < float(row["high_value"]) for row in rows)
    keys = [(row["experiment"], row["stage"], row["metric"]) for row in rows]
    assert len(keys) == len(set(keys))
    of_both = {row["metric"]: float(row["value"]) for row in rows if row["stage"] == "-1"}
    assert {"e2e_mean", "ttft_p99", "itl_mean"} <= set(of_both)


def test_a_prediction_does_not_depend_on_what_was_measured_of_the_run(tmp_path: Path) -> None:
    values = []
    for name, measured in (("a", 1000.0), ("b", 5000.0)):
        (tmp_path / name).mkdir()
        validate("load", folder(tmp_path / name, measured=measured), tmp_path / f"{name}.csv", leave_out="none")
        with (tmp_path / f"{name}.csv").open() as file:
            values.append([row["value"] for row in csv.DictReader(file)])
    assert values[0] == values[1]


def test_a_folder_without_any_table_and_a_row_without_a_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"neither load_runs\.csv"):
        validate("load", tmp_path, tmp_path / "out.csv", leave_out="none")
    truth = folder(tmp_path)
    text = (truth / "load_percentiles.csv").read_text()
    (truth / "load_percentiles.csv").write_text(text.replace("1000.0", "fast", 1))
    with pytest.raises(SpecError, match=r"load_percentiles\.csv: actual: must be a number, not 'fast'"):
        validate("load", truth, tmp_path / "out.csv", leave_out="none")


def test_answers_have_the_mean_and_the_percentiles_that_are_stated() -> None:
    drawn = answers((193.7, 247.0, 249.0, 249.0), (np.arange(10_000) + 0.5) / 10_000)
    assert drawn.mean() == pytest.approx(193.7, abs=0.5)
    assert np.quantile(drawn, [0.5, 0.9]) == pytest.approx([247, 249])


def test_names_of_workloads_and_devices() -> None:
    assert workload_of("27-mixtral-8x7b-tp2-general-lite-2-1", "general") == "general-lite"
    assert workload_of("20260217-155451-llama-2-7b-tp1-codegen") == "codegen"
    assert workload_of("x", " Chat ") == "chat"
    assert [device_of(name) for name in ("H100", "L40S", "h100-sxm")] == ["h100-sxm", "l40s", "h100-sxm"]
    assert device_of("A100-80GB").startswith("a100")


def test_recorded_requests_count_from_the_engines_queue(tmp_path: Path) -> None:
    run = recorded(folder(tmp_path))[0]
    assert run.device == "rtx-4090"
    assert run.ttft_s == pytest.approx([0.1, 0.1])
    assert run.e2e_s == pytest.approx([0.5, 0.5])
    assert run.load.arrival_s == pytest.approx([0.0, 1.0])


def test_as_many_tokens_are_made_as_the_load_generator_asks_for() -> None:
    """The client counts tokens of the text of an answer: their number per second of a token, not what was made."""
    stage = StageLoad(
        rate_per_s=2.0, requests=40, prompt_tokens=100, outputs=(150.0, 200.0, 201.0, 202.0), prompts=5, asked=200
    )
    run = Experiment(
        name="x", source="load_runs.csv", model=MODEL, device="l4", tp=1, dp=1, weights="bf16", most_tokens=2048,
        most_sequences=128, utilisation=0.9, workload="codegen", stages={0: stage}, measured={},
    )  # fmt: skip
    made, stages = load_of(run, seed=0)
    assert (made.new_tokens == 200).all()
    assert (stages == 0).all()
    found = _predicted(run, Constants())
    assert not isinstance(found, str)
    decoding = found[0, "e2e_mean"] - found[0, "ttft_mean"]
    assert found[0, "itl_mean"] == pytest.approx(decoding / 149)
    drawn, _ = load_of(replace(run, stages={0: replace(stage, asked=None)}), seed=0)
    assert drawn.new_tokens.mean() == pytest.approx(150, rel=0.1)

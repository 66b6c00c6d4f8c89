"""The main job on a small budget: everything that a finished run promises to leave behind."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from runs import SMOKE, chipwise, in_process

from chipwise.api import report
from chipwise.design.limits import broken
from chipwise.design.report.record import load
from chipwise.design.run.spec import load_run


@pytest.fixture(scope="module")
def record(smoke_run):
    return load(smoke_run / "record.json")


def test_the_run_is_finished_and_says_where_its_time_went(record) -> None:
    assert record.status == "finished"
    assert sum(record.budget.spent.values()) > 0
    assert {"calibrating", "measuring the finalists"} <= set(record.budget.spent)


def test_the_winner_was_measured_within_the_limits(record) -> None:
    winner = record.trial(record.winner)
    assert winner.measured is not None
    assert not broken(record.constraints, winner.measured)
    assert winner.quantised_loss is not None


def test_the_winner_had_the_full_budget_and_so_had_the_baseline(smoke_file, record) -> None:
    final = load_run(smoke_file).allowance.final
    for number in (record.winner, record.baseline):
        # in whole steps of 16 windows of 128 tokens
        assert record.trial(number).curve[-1].tokens == pytest.approx(final, abs=16 * 128)


def test_promises_stand_beside_measurements(record) -> None:
    promised = {item.metric for item in record.promised_measured if item.trial == record.winner}
    assert {"ttft_p50", "tpot_p50", "tpot_p99", "peak_memory"} <= promised
    assert all(item.low <= item.promised <= item.high for item in record.promised_measured)


def test_trials_csv_has_a_row_a_trial(smoke_run, record) -> None:
    with (smoke_run / "trials.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == len(record.trials)


def test_the_card_answers_the_four_questions(smoke_run) -> None:
    card = (smoke_run / "card.md").read_text().lower()
    for word in ("chip", "fast", "1,000 tokens", "designed for", "unknown"):
        assert word in card


def test_transformers_loads_the_winner_and_agrees_with_its_graph(smoke_run, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

    winner = smoke_run / "winner"
    model = AutoModelForCausalLM.from_pretrained(winner, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(winner, trust_remote_code=True)
    tokens = tokenizer("def parse(text: str) -> float:")["input_ids"]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, -1].numpy()
    got = OnnxRuntimeSession(winner / "model.onnx", capacity=len(tokens)).prefill(np.array([tokens]))[0]
    weights = json.loads((winner / "chipwise.json").read_text())["weights"]
    # quantised weights move logits; what they mean must stay the same
    assert np.corrcoef(expected, got)[0, 1] > (0.9999 if weights == "fp32" else 0.98)


def test_measure_says_whether_the_promise_is_kept(smoke_run) -> None:
    done = chipwise("measure", smoke_run / "winner", "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert len(outcome["measurement"]["tpot_s"]) >= 200
    assert outcome["promised"]["tpot_p50"][0] > 0
    assert [limit["metric"] for limit in outcome["limits"]] == ["tpot_p50", "tpot_p99", "ttft_p99", "peak_memory"]
    assert outcome["metrics"]["peak_memory"] < 300e6


def test_report_draws_again(smoke_run, tmp_path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(smoke_run, copy)
    for name in ("report.html", "card.md", "trials.csv"):
        (copy / name).unlink()
    again = report(copy)
    assert again.winner == load(smoke_run / "record.json").winner
    assert (copy / "report.html").stat().st_size > 1_000_000  # the plotting library is inside
    assert (copy / "card.md").exists()


def test_resuming_a_finished_run_changes_nothing(smoke_file, smoke_run, tmp_path) -> None:
    copy = shutil.copytree(smoke_run, tmp_path / "copy")
    before = (copy / "study.journal").read_text().count('"op_code":4')  # trials created
    done = in_process("search", smoke_file, "--out", copy, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    assert (copy / "study.journal").read_text().count('"op_code":4') == before


def test_a_folder_that_holds_a_run_is_not_run_over(smoke_file, smoke_run) -> None:
    done = in_process("search", smoke_file, "--out", smoke_run)
    assert done.returncode == 2
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_differs_in_more_than_may_change_is_refused_by_the_field(smoke_run, tmp_path) -> None:
    other = tmp_path / "smoke.yaml"
    other.write_text(SMOKE.replace("depth: [1, 2]", "depth: [1, 2, 3]"))
    done = in_process("search", other, "--out", smoke_run, "--resume")
    assert done.returncode == 2
    assert "space.depth: was [1, 2] and is now [1, 2, 3]" in done.stderr


def test_a_finished_run_goes_on_with_a_larger_budget_and_keeps_every_training(smoke_run, tmp_path) -> None:
    copy = shutil.copytree(smoke_run, tmp_path / "copy")
    before = {trial.number: trial for trial in load(copy / "record.json").trials if trial.train_cpu_s}
    larger = tmp_path / "smoke.yaml"
    larger.write_text(SMOKE.replace("tokens: 300k", "tokens: 350k"))
    done = chipwise("search", larger, "--out", copy, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    after = load(copy / "record.json")
    assert after.status == "finished"
    for number, trial in before.items():
        now = after.trial(number)
        assert now.curve[: len(trial.curve)] == trial.curve or now.train_cpu_s > trial.train_cpu_s
    assert json.loads((copy / "spec.json").read_text())["spec"]["budget"]["tokens"] == "350k"


def test_a_limit_that_nothing_keeps_ends_with_the_closest_design_and_exit_code_4(
    smoke_file, smoke_run, tmp_path
) -> None:
    """A limit that the winner exceeds; with the former limit the run ends as before."""
    copy = shutil.copytree(smoke_run, tmp_path / "copy")
    tight = tmp_path / "smoke.yaml"
    tight.write_text(SMOKE.replace("peak_memory: <= 300 MB", "peak_memory: <= 20 MB"))
    done = in_process("search", tight, "--out", copy, "--resume")
    assert done.returncode == 4, done.stderr
    assert "No candidate was found within the limits; this is the one that comes closest" in done.stdout
    assert (copy / "winner" / "model.onnx").exists()
    assert "past its limit" in (copy / "card.md").read_text()
    told = in_process("report", copy)
    assert told.returncode == 4
    assert f"chipwise search FILE --out {copy} --resume" in told.stdout
    done = in_process("search", smoke_file, "--out", copy, "--resume")
    assert done.returncode == 0, done.stderr

"""Wrong targets, kit results and job results give one error line, and nothing is lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chipwise.cli import main
from chipwise.core.files import read_json
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.design.strategies.storage import open_storage
from chipwise.model.arch import io
from chipwise.model.arch.arch import uniform

RUN = {
    "name": "toy",
    "target": {"device": "snapdragon-8-elite", "runtime": "llama.cpp"},
    "workload": {"prompt_tokens": 8, "new_tokens": 8},
    "constraints": {"tpot_p50": "<= 50 ms"},
    "space": {
        "d_model": [32, 64],
        "depth": [1],
        "vocab_size": [512],
        "head_size": [32],
        "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["swiglu"], "ffn_width": [64, 128]},
        "weights": ["int8"],
        "max_tokens": 64,
    },
    "data": {"source": "files", "paths": ["text.txt"], "entries": "blank-lines"},
    "budget": {"tokens": "400k", "final": "80k"},
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    entries = [f"Entry {i} says that {i * i} is the square of {i}, and {i + 1} comes next." for i in range(400)]
    (tmp_path / "text.txt").write_text("\n\n".join(entries))
    return tmp_path


def ends(monkeypatch, capsys, *arguments: object) -> tuple[object, str]:
    """Exit code and complaint of a command; 0 where it succeeds."""
    monkeypatch.setattr(sys, "argv", ["chipwise", *map(str, arguments)])
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr().err


def searched(home: Path, monkeypatch, capsys, *options: str, **changes: Any) -> tuple[object, str]:
    (home / "run.yaml").write_text(yaml.safe_dump({**RUN, **changes}))
    return ends(monkeypatch, capsys, "search", home / "run.yaml", "--out", home / "run", *options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": {"device": "snapdragon-8-elit"}}, "target.device: unknown device 'snapdragon-8-elit'"),
        ({"target": {"device": "apple-m4", "runtime": "vllm"}}, "target.runtime: vLLM does not run on apple-m4"),
        ({"target": {"device": "apple-m4", "ambient": "hot"}}, "target.ambient: 'hot' is not a quantity"),
        ({"target": {"device": "apple-m3-max"}, "constraints": {"power": "<= 6 W"}}, "constraints.power: "),
        ({"train": {"on": "cuda"}}, "train.on: cuda: torch finds no CUDA device"),
        ({"confidence": "5 %"}, "confidence: "),
        ({"constraints": {"tpot_p50": "<= 1 ns"}}, "tpot_p50 <= 1 ns with 90 % confidence (predicted <= "),
        ({"space": {**RUN["space"], "conv": ["none", "both"]}}, "space: "),
    ],
)
def test_a_target_that_cannot_be_is_one_line_and_leaves_no_run(home, monkeypatch, capsys, changes, said) -> None:
    code, complaint = searched(home, monkeypatch, capsys, "--json", **changes)
    assert code in (1, 2)
    assert said in complaint
    assert complaint.count("\n") == 1
    assert not (home / "run" / "study.journal").exists()
    assert not (home / "run" / "record.json").exists()


def kit_results(home: Path, monkeypatch, capsys, **changes: Any) -> dict[str, Any]:
    """Results of a model's kit as its script writes them."""
    io.save(uniform(vocab_size=64, d_model=32, depth=1, heads=1, ffn_width=64, max_tokens=256), home / "m.json")
    options = ("--device", "apple-m4", "--out", home / "kit")
    assert ends(monkeypatch, capsys, "kit", home / "m.json", *options)[0] in (0, None)
    kit = read_json(home / "kit" / "kit.json")
    one = {
        **{name: [1e-3] * 3 for name in ("ttft_s", "tpot_s", "ttft_cpu_s", "tpot_cpu_s")},
        **{"cpu_s": 0.1, "wall_s": 0.1, "peak_memory_bytes": 10**7, "energy_j": None, "readings": {}},
        **{"facts": {}, "machine": "M4", "runtime_version": "1"},
    }
    return {
        **{"schema": "chipwise.kit_results/1", "created": "2026-01-02T03:04:05Z", "complete": True},
        **{"device": "apple-m4", "machine": {"name": "M4", "cpu": "Apple M4", "cores": 10}, "threads": 1, "kit": kit},
        "measured": [{"file": item["file"], "sha256": item["sha256"], "rounds": [one]} for item in kit["models"]],
        **changes,
    }


def test_results_that_cannot_be_used_are_one_line_and_add_nothing(home, monkeypatch, capsys) -> None:
    right = kit_results(home, monkeypatch, capsys)
    other = {"name": "X", "cpu": "Intel(R) Core(TM) i7-8700", "cores": 6}
    whole = json.dumps(right)
    for text, said in (
        (whole[: len(whole) // 2], "the file ends in the middle of its JSON; copy it again completely"),
        (json.dumps({**right, "machine": other}), "measured on Intel(R) Core(TM) i7-8700, which is not apple-m4"),
        (json.dumps({**right, "device": "my-mac"}), "measured as my-mac, but the kit was made for apple-m4"),
    ):
        (home / "results.json").write_text(text)
        code, complaint = ends(monkeypatch, capsys, "measurements", "import", home / "results.json")
        assert (code, complaint.count("\n")) == (2, 1)
        assert said in complaint
        assert MeasurementStore().entries() == []
    (home / "results.json").write_text(whole)
    assert ends(monkeypatch, capsys, "measurements", "import", home / "results.json")[0] in (0, None)
    assert len(MeasurementStore().entries()) == 1


def test_a_job_result_of_another_spec_is_one_line_and_no_trial_is_lost(home, monkeypatch, capsys) -> None:
    """A search that waits for jobs (exit 3) reports a result of another run by name and keeps its trials."""
    code, _ = searched(home, monkeypatch, capsys, "--train-on", "jobs")
    assert code == 3
    jobs = home / "run" / "jobs"
    waiting = (jobs / "todo.txt").read_text().split()
    before = trials(home)
    assert before
    held = read_json(jobs / waiting[0])
    result = {"schema": "chipwise.job-result/1", "identity": "0" * 16, "values": {}, "training": {}}
    (jobs / waiting[0]).with_suffix(".result.json").write_text(json.dumps(result))
    code, complaint = searched(home, monkeypatch, capsys, "--train-on", "jobs", "--resume")
    lines = [line for line in complaint.splitlines() if line.startswith("error:")]
    assert (code, len(lines)) == (2, 1)
    assert Path(waiting[0]).stem in lines[0] or Path(waiting[0]).parent.name in lines[0]
    assert "a different run file, text or chipwise version" in lines[0]
    assert trials(home) == before
    assert read_json(jobs / waiting[0]) == held


def trials(home: Path) -> list[tuple[int, str]]:
    """Numbers and states of the run's trials."""
    import optuna

    study = optuna.load_study(study_name="toy", storage=open_storage(home / "run" / "study.journal"))
    return [(trial.number, trial.state.name) for trial in study.trials]

"""Searches that rank candidates with a supernet, or by the law alone: finished, within means, and reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from brief import measure_briefly
from runs import EXAMPLES

from chipwise import api
from chipwise.design.report.record import RunRecord

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _briefly(monkeypatch) -> None:
    measure_briefly(monkeypatch.setattr)


def searched(home: Path, smoke_run: Path, quality: object) -> tuple[RunRecord, Path]:
    data = yaml.safe_load((EXAMPLES / "smoke.yaml").read_text())
    lines = (
        f"Pass {i} takes {i * 7 % 13} milliseconds and core {i % 4} holds {i * i % 101} numbers.\n"
        for i in range(9_000)
    )
    (home / "text.txt").write_text("".join(lines))
    data["data"] = {"source": "files", "paths": ["text.txt"], "entries": "lines"}
    data["constraints"] |= {"tpot_p99": "<= 1 s", "ttft_p99": "<= 5 s"}  # whatever else the machine does
    data |= {"quality": quality, "budget": {"cpu": "40 s", "final": "1 s", "workers": 1}}
    (home / "spec.yaml").write_text(yaml.safe_dump(data))
    folder = home / "run"
    folder.mkdir()
    shutil.copy(smoke_run / "profile.json", folder)
    return api.search(home / "spec.yaml", out=folder), folder


def test_the_supernet_is_trained_and_scores_designs(smoke_run, tmp_path) -> None:
    record, folder = searched(tmp_path, smoke_run, {"method": "supernet", "budget": "3 s"})
    assert record.status == "finished"
    assert {"training the supernet", "scoring with the supernet"} <= set(record.budget.spent)
    scores = json.loads((folder / "supernet" / "scores.json").read_text())
    assert len(scores) >= 10
    assert all(0 < value < 10 for value in scores.values() if value is not None)
    before = (folder / "supernet" / "scores.json").stat().st_mtime_ns
    again = api.search(tmp_path / "spec.yaml", out=folder, resume=True)
    assert again.winner == record.winner
    assert (folder / "supernet" / "scores.json").stat().st_mtime_ns == before


def test_a_proxy_run_trains_nothing_but_finals(smoke_run, tmp_path) -> None:
    record, _ = searched(tmp_path, smoke_run, "proxy")
    trained = [trial for trial in record.trials if trial.train_cpu_s]
    assert len(trained) >= 3
    assert all(trial.train_cpu_s == pytest.approx(1.0, rel=0.3) for trial in trained)
    assert record.winner is not None
    assert record.baseline is not None

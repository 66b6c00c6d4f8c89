"""A search whose target is reached over ssh: the whole way against a daemon on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from daemon import Daemon, ssh_daemon
from runs import BRIEFLY

from chipwise.design.report.record import load

SEARCH = {
    "name": "board",
    "workload": {"prompt_tokens": 8, "new_tokens": 8},
    "constraints": {"tpot_p50": "<= 1 s", "ttft_p99": "<= 5 s", "peak_memory": "<= 900 MB"},
    "objectives": {"bits_per_byte": "minimize", "parameters": "minimize"},
    "space": {
        "d_model": [32, 64],
        "depth": [1],
        "vocab_size": [512],
        "head_size": [16],
        "layer": {"heads": [2, 4], "kv_heads": [1], "ffn": ["swiglu"], "ffn_width": [64, 128]},
        "weights": ["fp32", "int8"],
        "max_tokens": 64,
    },
    "data": {"source": "files", "paths": ["package:chipwise/cli/*.py"], "entries": "blank-lines"},
    "train": {"precision": "fp32"},
    "budget": {"tokens": 160_000, "final": 40_000, "workers": 2},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with ssh_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


def search(daemon: Daemon, folder: Path, *arguments: object, python: str = sys.executable, **options):
    """Starts the command; the run's file states where the model will be served."""
    target = {"device": f"ssh:{daemon.host}", "like": "xeon-8480-plus:1-core", "runtime": "onnxruntime"}
    path = folder / "board.yaml"
    path.write_text(yaml.safe_dump(SEARCH | {"target": target}))
    command = [sys.executable, "-c", BRIEFLY, "search", path, "--out", folder / "run"]
    reached = {"CHIPWISE_SSH": daemon.client, "CHIPWISE_REMOTE_PYTHON": python, "CHIPWISE_HOME": str(folder / "home")}
    return subprocess.run(
        [*map(str, command), *map(str, arguments)],
        capture_output=True, text=True, timeout=900, env=os.environ | reached | {"COLUMNS": "160", "NO_COLOR": "1"},
        **options,
    )  # fmt: skip


def test_without_python_there_the_search_ends_with_one_error(daemon, tmp_path) -> None:
    done = search(daemon, tmp_path, python="no-such-python")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "no-such-python" in line]
    assert "there is no no-such-python there; measuring needs Python 3.11" in line
    assert "Traceback" not in done.stderr


def test_a_search_ends_with_what_was_measured_there_also_after_the_connection_dropped(daemon, tmp_path) -> None:
    dropping = threading.Thread(
        target=daemon.drop_when, args=("chipwise.deploy.measure.worker",), kwargs={"timeout_s": 600}
    )
    dropping.start()
    cut = search(daemon, tmp_path)
    dropping.join()
    assert cut.returncode == 1, cut.stdout + cut.stderr
    assert "the connection was lost while measuring" in cut.stderr
    assert "Traceback" not in cut.stderr
    partial = load(tmp_path / "run" / "record.json")
    assert partial.status == "partial"
    assert all(trial.state != "failed" for trial in partial.trials)  # no design is blamed for it
    daemon.start()
    done = search(daemon, tmp_path, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    record = load(tmp_path / "run" / "record.json")
    winner = record.trial(record.winner)
    assert winner.measured.keys() >= {"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "peak_memory"}
    assert record.target.measures
    assert record.target.device == f"ssh:{daemon.host}"
    promised = json.loads((tmp_path / "run" / "winner" / "chipwise.json").read_text())
    assert promised["measured"]["tpot_p50"] == winner.measured["tpot_p50"]
    assert "(measured)" in (tmp_path / "run" / "card.md").read_text()

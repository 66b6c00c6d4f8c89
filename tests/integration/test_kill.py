"""A search that was killed at any moment can be resumed, and no finished work is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from runs import BRIEFLY, chipwise

from chipwise.design.report.record import load
from chipwise.design.run.spec import load_run
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.model.space.search_space import SearchSpace

KILLS = 5

# A shell ignores Ctrl-C in what it runs in its background, and its children inherit that.
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"


def begin(spec: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", BRIEFLY]
    return subprocess.Popen(
        [*command, "search", str(spec), "--out", str(folder), "--resume"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def finished(spec: Path, folder: Path) -> dict[tuple[int, int], float]:
    """Bits per byte of every training in the study, by trial and rung, read from a copy."""
    if not (folder / "study.journal").exists():
        return {}
    copy = folder.parent / "copy.journal"
    shutil.copy(folder / "study.journal", copy)
    run = load_run(spec)
    space = SearchSpace(run.space)
    directions = [goal.direction for goal in run.goals]
    study = Study(copy, name=run.name, directions=directions, identity=run.identity, choices=choice_labels(space))
    return {
        (item.number, rung.rung): rung.quantised_loss for item in Trials(study, run, space).all() for rung in item.rungs
    }


@pytest.mark.slow
def test_killed_five_times_and_resumed_nothing_is_lost(smoke_file, smoke_run, tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(smoke_run / "profile.json", folder)  # calibration has tests of its own
    moments = random.Random(0)
    known: dict[tuple[int, int], float] = {}
    for _ in range(KILLS):
        process = begin(smoke_file, folder)
        try:
            process.wait(timeout=moments.uniform(1.0, 8.0))
        except subprocess.TimeoutExpired:
            workers = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            _, alive = psutil.wait_procs(workers, timeout=60)
            assert not alive, "workers outlived the search"
        now = finished(smoke_file, folder)
        assert known.items() <= now.items()
        known = now
    done = chipwise("search", smoke_file, "--out", folder, "--resume", timeout_s=1200)
    assert done.returncode == 0, done.stderr
    assert known.items() <= finished(smoke_file, folder).items()
    record = load(folder / "record.json")
    assert record.status == "finished"
    assert {number for number, _ in known} <= {trial.number for trial in record.trials}


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_there_and_says_how_to_go_on(smoke_file, smoke_run, tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(smoke_run / "profile.json", folder)
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HEARS_CTRL_C}; {BRIEFLY}", "search"] + [str(smoke_file), "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not finished(smoke_file, folder) and process.poll() is None:
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 130, complaint
    assert "--resume" in complaint
    assert "Traceback" not in complaint
    assert load(folder / "record.json").status == "partial"

"""A folder of jobs: what is asked for, what comes back, and what is refused by name while everything else is kept."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chipwise.api.testing.trainer_suite import plain_result, toy_job
from chipwise.errors import InputError, JobsMissing
from chipwise.training.trainers.jobs import JobsTrainer, run_job
from chipwise.training.trainers.protocol import Setup


def ask(folder: Path, jobs) -> tuple[list, Exception | None]:
    """What a round gives, and what ends it."""
    found = []
    with JobsTrainer(Setup(on="jobs", folder=folder)) as trainer:
        try:
            found += trainer.run(jobs)
        except (InputError, JobsMissing) as error:
            return found, error
    return found, None


def todo(folder: Path) -> list[str]:
    return (folder / "jobs" / "todo.txt").read_text().split()


def run_listed(folder: Path) -> list[Path]:
    """Runs every job that is listed; the result files."""
    paths = [folder / "jobs" / line for line in todo(folder)]
    for path in paths:
        run_job(path)
    return [path.with_name(f"{path.stem}.result.json") for path in paths]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, list[Path]]:
    """A folder of two jobs that were asked for and run; their result files."""
    home = tmp_path_factory.mktemp("finished")
    ask(home, [toy_job(home, name, steps=4) for name in ("a", "b")])
    return home, run_listed(home)


@pytest.fixture
def ran(finished, tmp_path) -> tuple[Path, list, list[Path]]:
    """A copy of it that a test may spoil: the folder, its jobs and their result files."""
    home, results = finished
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    jobs = [toy_job(tmp_path, name, steps=4) for name in ("a", "b")]
    return tmp_path, jobs, [tmp_path / path.relative_to(home) for path in results]


def test_missing_jobs_are_named_and_what_is_there_is_given(tmp_path) -> None:
    jobs = [toy_job(tmp_path, name, steps=4) for name in ("a", "b")]
    found, error = ask(tmp_path, jobs)
    assert not found
    assert isinstance(error, JobsMissing)
    assert error.exit_code == 3
    assert "2 jobs to run" in str(error)
    assert "run_all.sh" in str(error)
    assert "--resume" in str(error)
    first, second = todo(tmp_path)
    run_job(tmp_path / "jobs" / first)
    found, error = ask(tmp_path, jobs)
    assert [(event.job, event.kind) for event in found] == [(0, "result")]
    assert todo(tmp_path) == [second]
    assert "1 job to run" in str(error)


def test_the_folder_can_be_moved(tmp_path) -> None:
    """A job finds its text beside it, wherever the folder is, and holds nothing that could be executed."""
    home, away = tmp_path / "home", tmp_path / "away"
    jobs = [toy_job(home, "a", steps=4)]
    ask(home, jobs)
    (home / "jobs").rename(away)
    run_job(away / (away / "todo.txt").read_text().strip())
    away.rename(home / "jobs")
    found, error = ask(home, jobs)
    assert error is None
    assert found[0].kind == "result"
    kinds = {path.suffix for path in (home / "jobs").rglob("*") if path.is_file()}
    assert kinds <= {".json", ".npz", ".safetensors", ".sh", ".txt"}


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:50])


def of_another_run(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"identity": "0" * 16}))


def no_result(path: Path) -> None:
    path.write_text("[]")


def without_weights(path: Path) -> None:
    for weights in path.parent.glob("weights-*"):
        weights.unlink()


def with_half_the_weights(path: Path) -> None:
    for weights in path.parent.glob("weights-*"):
        weights.write_bytes(weights.read_bytes()[:-8])


def with_weights_of_the_other(path: Path) -> None:
    """Well-formed weights of another architecture, with their digest."""
    import hashlib

    other = next(p for p in path.parent.parent.glob("*/weights-*") if p.parent != path.parent)
    for weights in path.parent.glob("weights-*"):
        weights.write_bytes(other.read_bytes())
    held = json.loads(path.read_text()) | {"weights_sha256": hashlib.sha256(other.read_bytes()).hexdigest()}
    path.write_text(json.dumps(held))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "cannot be read"),
        (no_result, "is not a result"),
        (of_another_run, "a different run file, text or chipwise version"),
        (without_weights, "are missing"),
        (with_half_the_weights, "not the final weights"),
        (with_weights_of_the_other, "to a different architecture"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_rest_is_kept(ran, spoil, said) -> None:
    folder, jobs, results = ran
    spoil(results[0])
    found, error = ask(folder, jobs)
    assert [(event.job, event.kind) for event in found] == [(1, "result")]
    assert isinstance(error, InputError)
    assert said in str(error)
    assert str(results[0].parent.name) in str(error)
    assert "\n" not in str(error)
    assert len(todo(folder)) == 1
    (again,) = run_listed(folder) if said != "are missing" else [results[0]]
    if said != "are missing":
        assert again == results[0]
        found, error = ask(folder, jobs)
        assert error is None
        assert len(found) == 2


def test_a_text_that_changed_is_refused_where_the_job_runs(tmp_path) -> None:
    ask(tmp_path, [toy_job(tmp_path, "a", steps=4)])
    (tokens,) = (tmp_path / "jobs" / "tokens").iterdir()
    tokens.write_bytes(tokens.read_bytes() + b"x")
    with pytest.raises(InputError, match="not the text"):
        run_job(tmp_path / "jobs" / todo(tmp_path)[0])


def test_a_job_that_was_killed_goes_on_when_it_is_run_again(tmp_path) -> None:
    """It is killed after its state before the decay was written; run again, it gives what an undisturbed one gives."""
    job = toy_job(tmp_path, "a", steps=400)
    ask(tmp_path, [job])
    script, line = tmp_path / "jobs" / "run_job.sh", todo(tmp_path)[0]
    environment = os.environ | {"PYTHON": sys.executable}
    process = subprocess.Popen([script, line], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    kept = (tmp_path / "jobs" / line).with_name("stable.safetensors")
    until = time.monotonic() + 120
    while not kept.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert kept.exists()
    assert isinstance(ask(tmp_path, [job])[1], JobsMissing)
    values = run_job(tmp_path / "jobs" / line)["values"]
    assert values["spent_cpu_s"] < values["cpu_s"]  # the first half was not repeated
    (event,), error = ask(tmp_path, [job])
    assert error is None
    known = plain_result(dataclasses.replace(job), tmp_path / "plain")
    assert event.data["loss"] == known["loss"]

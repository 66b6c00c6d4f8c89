"""Judging in processes of their own: noted once, failures said, and the record that a report draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from chipwise.pipeline import task_evaluation
from chipwise.pipeline.task_evaluation import run_side_by_side
from chipwise.spec import uniform
from chipwise.training.tasks_worker import TaskJob

ARCH = uniform(vocab_size=256, d_model=32, depth=1, heads=2, ffn_width=32, max_tokens=64)


def job(folder: Path) -> TaskJob:
    return TaskJob(task="t.csv", arch=ARCH, form="int8", weights="w", tokenizer="t", folder=str(folder))


@pytest.fixture
def worker(monkeypatch, tmp_path: Path):
    """Replaces the worker's work by a small program, which is given the job's folder as ``folder``."""

    def put(program: str) -> None:
        script = tmp_path / "worker.py"
        lines = "".join(f"    {line}\n" for line in program.splitlines())
        script.write_text(
            "import os, signal, sys, time\nfrom pathlib import Path\nfrom chipwise.core.errors import DataError\n"
            "from chipwise.core.workers import serve\n"
            f"def run(job, report):\n    folder = job['folder']\n{lines}serve(run)\n"
        )
        monkeypatch.setattr(task_evaluation, "COMMAND", [sys.executable, str(script)])

    return put


def test_results_come_in_the_order_of_jobs_and_no_more_run_than_workers(worker, tmp_path: Path) -> None:
    worker(
        "while folder.endswith('0') and not os.path.exists(folder[:-1] + '3'): time.sleep(0.01)\n"
        "Path(folder).touch()\nreturn {'of': folder[-1]}\n"
    )
    most: list[int] = []
    jobs = {(i, "t"): job(tmp_path / str(i)) for i in range(4)}
    found = run_side_by_side(jobs, workers=2, on_progress=lambda running: most.append(len(running)))
    assert found == [((i, "t"), {"of": str(i)}) for i in range(4)]
    assert max(most) == 2


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise DataError('line 3: no label')", "line 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("print('strange words'); sys.stdout.flush(); os._exit(7)", "exit code 7): strange words"),
    ],
)
def test_a_failure_says_why_and_costs_the_others_nothing(worker, tmp_path: Path, program: str, said: str) -> None:
    worker(f"if folder.endswith('0'):\n    {program}\nreturn {{'of': folder[-1]}}\n")
    found = dict(run_side_by_side({(i, "t"): job(tmp_path / str(i)) for i in range(2)}, workers=1))
    assert said in found[0, "t"]["failed"]
    assert found[1, "t"] == {"of": "1"}


def test_a_job_travels_as_one_line(tmp_path: Path) -> None:
    data = json.loads(json.dumps(job(tmp_path).to_data()))
    assert data["form"] == "int8"
    assert TaskJob.from_data(data) == job(tmp_path)

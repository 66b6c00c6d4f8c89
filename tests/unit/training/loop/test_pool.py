import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chipwise.core.workers import Event
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.training.loop.worker import TrainJob, training_pool

RECIPE = {"window_tokens": 24, "batch_windows": 4, "warmup_steps": 5}


@pytest.fixture
def job(arch: ArchSpec, tokens_path: Path, tmp_path: Path) -> Callable[..., TrainJob]:
    def make(name: str, budget: float = 0.2, **more) -> TrainJob:
        values = {"tokens": str(tokens_path), "seed": 1, "recipe": RECIPE, "max_validation_bytes": 1000, **more}
        return TrainJob(arch=arch, folder=str(tmp_path / name), cpu_budget_s=budget, **values)

    return make


def ends(events: list[Event]) -> dict[int, Event]:
    return {event.job: event for event in events if event.kind != "progress"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_job_survives_the_line_it_travels_on(job: Callable[..., TrainJob]) -> None:
    made = job("a", formats=("int8",))
    data = json.loads(json.dumps(made.to_data()))
    assert TrainJob.from_data(data) == made
    with pytest.raises(SpecError, match="unknown field"):
        TrainJob.from_data({**data, "colour": 1})


def test_jobs_give_results_and_faults_of_one_spare_the_others(job: Callable[..., TrainJob], tmp_path: Path) -> None:
    with training_pool(1) as pool:
        good = pool.submit(job("good", formats=("int8",)).to_data())
        missing = pool.submit(job("missing", tokens=str(tmp_path / "none.npz")).to_data())
        wrong = pool.submit(job("wrong", recipe={"colour": 1}).to_data())
        doomed = pool.submit(job("doomed", budget=500.0).to_data())
        after = pool.submit(job("after").to_data())
        seen = []
        for event in pool.events():
            seen.append(event)
            if event.job == doomed and event.kind == "progress":
                os.kill(next(w.process.pid for w in pool._workers if w.job == doomed), signal.SIGKILL)
        pids = [worker.process.pid for worker in pool._workers]
    ended = ends(seen)
    assert ended[good].kind == ended[after].kind == "result"
    assert ended[good].data["quantised"]["int8"] == pytest.approx(ended[good].data["loss"], rel=0.02)
    assert Path(ended[good].data["weights"]).exists()
    assert ended[missing].data["kind"] == "DataError"
    assert ended[wrong].data["kind"] == "SpecError"
    assert ended[doomed].data["kind"] == "WorkerError"
    assert "killed by signal 9" in ended[doomed].data["message"]
    assert not any(map(alive, pids))


def test_a_worker_that_stays_silent_is_ended(job: Callable[..., TrainJob]) -> None:
    with training_pool(1) as pool:
        number = pool.submit(job("stopped", budget=500.0).to_data())
        stopped = False
        for event in pool.events():
            if event.kind == "progress" and not stopped:
                os.kill(pool._workers[0].process.pid, signal.SIGSTOP)
                stopped = True
                pool._silence_s = 1.0
            if event.kind == "failed":
                assert event.job == number
                assert "sent no message" in event.data["message"]
        assert stopped


PARENT = """
import json, sys
from chipwise.training.loop.worker import training_pool
pool = training_pool(1)
pool.submit(json.loads(sys.argv[1]))
for event in pool.events():
    print(pool._workers[0].process.pid, flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc, which Linux has")
def test_no_worker_outlives_a_killed_parent(job: Callable[..., TrainJob]) -> None:
    data = job("orphan", budget=500.0).to_data()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(data)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())  # in the middle of a training
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not alive(pid))

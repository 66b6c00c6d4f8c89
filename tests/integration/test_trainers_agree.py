"""One run file on three trainers: the same seed gives the same decisions, and kills lose no finished work."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from runs import EXAMPLES

from chipwise import api
from chipwise.api.testing.trainer_suite import plain_result, toy_job
from chipwise.core.files import read_yaml
from chipwise.deploy.measure import harness
from chipwise.design.phases import run_budget
from chipwise.design.report.record import RunRecord
from chipwise.design.run.past import PastTrainings
from chipwise.design.targets import bench
from chipwise.errors import JobsMissing
from chipwise.training.loop.worker import TrainJob
from chipwise.training.trainers.jobs import STABLE, run_job
from chipwise.training.trainers.local import LocalTrainer, ended
from chipwise.training.trainers.protocol import Setup
from chipwise.training.trainers.ray_cluster import place_on_node
from support.machines import core_like, other

pytestmark = pytest.mark.slow

ROUNDS = 20


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """What is trained in this process sums in the order of workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(profile: Path, home: Path, **changed: object) -> tuple[dict, Path]:
    """The smoke run with fewer tokens and its own text, and a folder with this machine's calibration."""
    spec = read_yaml(EXAMPLES / "smoke.yaml") | {"budget": {"tokens": "450k", "final": "150k", "workers": 2}}
    text = home.parent / "text.txt"
    text.write_text(
        "".join(
            f"Pass {i} takes {i * 7 % 13} milliseconds and core {i % 4} holds {i * i % 101} numbers.\n"
            for i in range(4_000)
        )
    )
    home.mkdir()
    shutil.copy(profile, home / "profile.json")  # calibration has tests of its own
    own = {"data": {"source": "files", "paths": [str(text)], "entries": "lines"}, "prior": "shipped"}
    return spec | own | changed, home


def searched(on: str, profile: Path, home: Path, **changed: object) -> RunRecord:
    """The record of the run on a trainer; runs job files when the search waits for them."""
    spec, folder = small(profile, home, **changed)
    for _ in range(ROUNDS):
        try:
            return api.search(spec, out=folder, resume=True, train_on=on)
        except JobsMissing:
            for line in (folder / "jobs" / "todo.txt").read_text().split():
                run_job(folder / "jobs" / line)
    raise AssertionError("the search asks for jobs again and again")


def decisions(record: RunRecord) -> list[tuple[object, ...]]:
    """Choices and losses of every trial, and the winning trial."""
    tried = [(item.number, item.choices, item.quantised_loss) for item in record.trials]
    return [*tried, ("winner", record.winner)]


def on_a_day(slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements are short and made once; a step takes longer by up to ``slowness``, as a model's size has it."""

    def one(path, workload, **settings):
        found = harness.measure(path, workload, **settings | {"seconds": 0.1, "attempts": 1})
        factor = 1 + slowness * (json.loads(Path(path).read_text())["prefill_s"] * 1e9 % 7) / 7
        return dataclasses.replace(found, tpot_s=tuple(factor * each for each in found.tpot_s))

    monkeypatch.setattr(bench, "measure", one)
    monkeypatch.setattr(bench, "measure_alternately", lambda paths, *how, **more: [one(p, *how, **more) for p in paths])
    monkeypatch.setattr(run_budget, "FINALS_S", 0.1)  # one round


def test_the_same_decisions_on_every_trainer_and_day(tmp_path, monkeypatch) -> None:
    """Wide limits and counted objectives, so that no measurement or timing influences decisions."""
    pytest.importorskip("ray", reason="needs the extra ray")
    found = {}
    for on, slowness, rates in (
        ("local", 0.0, {}),
        ("jobs", 3.0, {"attention": 4.0}),
        ("ray", 8.0, {"norm": 8.0, "elementwise": 5.0}),
    ):
        on_a_day(slowness, monkeypatch)
        other(core_like(), **rates).save(tmp_path / f"{on}.json")
        changed = {"target": {"device": "local", "runtime": "fake"}}
        found[on] = decisions(searched(on, tmp_path / f"{on}.json", tmp_path / on, **changed))
    assert len(found["local"]) > 6
    stored = {one.loss for one in PastTrainings().entries()}  # for later runs; these ask for none
    assert sum(loss in stored for _, _, loss in found["local"][:-1]) > 3
    assert found["jobs"] == found["local"]
    assert found["ray"] == found["local"]


@pytest.mark.skipif(not os.environ.get("CHIPWISE_SLOW"), reason="three searches, minutes: set CHIPWISE_SLOW=1")
def test_the_same_winner_on_local_ray_and_jobs(smoke_run, tmp_path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    profile = smoke_run / "profile.json"
    local = decisions(searched("local", profile, tmp_path / "local"))
    assert len(local) > 4
    assert decisions(searched("jobs", profile, tmp_path / "jobs")) == local
    assert decisions(searched("ray", profile, tmp_path / "ray")) == local


RAY_SEARCH = """
    import sys
    from pathlib import Path
    from chipwise.api.testing.trainer_suite import toy_job
    from chipwise.training.trainers.protocol import Setup
    from chipwise.training.trainers.ray_cluster import RayTrainer

    home = Path(sys.argv[1])
    jobs = [toy_job(home, "a"), toy_job(home, "b", steps=100_000)]
    with RayTrainer(Setup(on="ray", folder=home, workers=2)) as trainer:
        for event in trainer.run(jobs):
            print(event.job, event.kind, flush=True)
"""


def test_a_killed_driver_loses_no_training_that_had_finished(tmp_path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    command = [sys.executable, "-c", textwrap.dedent(RAY_SEARCH), str(tmp_path)]
    with (tmp_path / "complaints.txt").open("w") as complaints:
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline().split() == ["0", "result"], (tmp_path / "complaints.txt").read_text()[-2000:]
    helpers = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.wait()
    assert ended(toy_job(tmp_path, "a"))
    jobs = [toy_job(tmp_path, "a"), toy_job(tmp_path, "b")]
    with LocalTrainer(Setup(on="local", folder=tmp_path, workers=1)) as trainer:
        found = {event.job: event for event in trainer.run(jobs) if event.kind != "progress"}
    assert found[0].data["spent_cpu_s"] == 0.0
    assert found[1].kind == "result"
    _, alive = psutil.wait_procs(helpers, timeout=300)  # seconds where the machine is free
    assert not alive, f"Ray outlived the search that had started it: {alive}"


def kill_in_the_middle(job: TrainJob, killed: list[int]) -> None:
    """Kills, with SIGKILL, the Ray worker that trains, once it has written the state before the decay."""
    text = hashlib.sha256(Path(job.tokens).read_bytes()).hexdigest()
    state = place_on_node(job.to_data(), text, None) / STABLE
    until = time.monotonic() + 120
    while time.monotonic() < until and not state.exists():
        time.sleep(0.005)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have ended since it was listed
            if "ray::train_task" in " ".join(process.cmdline()):
                process.kill()
                killed.append(process.pid)


def test_a_killed_ray_worker_returns_its_training(tmp_path) -> None:
    """If a worker is killed during a training, another one repeats it with the same weights as result."""
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    from chipwise.training.trainers.ray_cluster import RayTrainer

    job = toy_job(tmp_path, steps=400)
    killed: list[int] = []
    with RayTrainer(Setup(on="ray", folder=tmp_path, workers=1)) as trainer:
        events = trainer.run([job])
        killer = threading.Thread(target=kill_in_the_middle, args=(job, killed))
        killer.start()
        (event,) = [event for event in events if event.kind != "progress"]
        killer.join()
    assert killed, "the training was over before its worker could be killed"
    assert event.kind == "result", event.data
    known = plain_result(job, tmp_path / "plain")
    assert event.data["loss"] == known["loss"]
    assert Path(event.data["weights"]).read_bytes() == Path(known["weights"]).read_bytes()
    assert not ray.is_initialized()

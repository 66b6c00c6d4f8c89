"""The user's tasks at the end of a run: each contender is tuned on them and judged as it would be deployed.

A contender's classifier is left in ``trials/<number>/tasks/<task>/``; what it reached is noted in its trial, so that a
run which was killed judges nobody twice. Tunings run side by side in processes of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chipwise.core.errors import MissingExtra, SpecError
from chipwise.core.workers import WorkerPool
from chipwise.run.folder import RunFolder
from chipwise.run.spec import RunSpec
from chipwise.run.start_spec import StartSpec
from chipwise.run.trials import Candidate, Trials
from chipwise.space.constraints import Constraint, broken
from chipwise.training.tasks_classifier import FOLDER, copy_classifier
from chipwise.training.tasks_data import Task, load_task
from chipwise.training.tasks_worker import TaskJob
from chipwise.training.tokenizer import TokenStore

BAR_SHARE = 0.1  # CPU seconds of the bag of words beside those of one model's tuning
CONTENDERS = 3  # two finalists and the baseline
SPARE = 3  # candidates beyond the finalists that are asked where no finalist reaches a floor
COMMAND = [sys.executable, "-m", "chipwise.training.tasks_worker"]
_LOOK_S = 0.1


def load_tasks(spec: RunSpec | StartSpec) -> dict[str, Task]:
    """The tasks of a run by their names in it.

    Raises:
        DataError: A task's file is missing, or a label in it is; the line is named.
        SpecError: A floor is on a metric that the task does not have.
        MissingExtra: The package that a shipped task is built from is not installed.
    """
    tasks = {item.label: load_task(item.where(spec.folder), kind=item.kind) for item in spec.tasks}
    for floor in spec.floors:
        task = tasks[str(floor.task)]
        if floor.metric.partition("@")[0] != task.metric:
            raise SpecError(
                f"{floor.task} is {task.kind}; its floor is on {task.metric}@{floor.task}",
                field=f"constraints.{floor.metric}",
            )
    return tasks


def planned_cpu_s(tasks: Mapping[str, Task]) -> float:
    """CPU seconds that the run sets aside for judging."""
    from chipwise.training.tasks import expected_cpu_s

    return sum((CONTENDERS + BAR_SHARE) * expected_cpu_s(task) for task in tasks.values())


class Judging:
    """Asks contenders the run's tasks, and what a bag of words reaches on them.

    Args:
        spec: The run.
        tasks: See :func:`load_tasks`.
        trials: Where results are noted.
        folder: The run's folder.
        store: Tokenizers.
        told: Hears what is being done.
    """

    def __init__(
        self,
        spec: RunSpec,
        tasks: Mapping[str, Task],
        trials: Trials,
        folder: RunFolder,
        store: TokenStore,
        *,
        told: Callable[[str], None] = lambda detail: None,
    ) -> None:
        self._spec, self._tasks, self._trials = spec, tasks, trials
        self._folder, self._store, self._told = folder, store, told

    def ask(self, contenders: Sequence[Candidate]) -> None:
        """Judges every contender on every task, where that is not known yet."""
        jobs: dict[tuple[int, str], TaskJob] = {}
        for item in contenders:
            for name, task in self._tasks.items():
                job = self._job(item, name)
                if item.tasks.get(name, {}).get("key") != job.key(task):
                    jobs[item.number, name] = job
        for (number, name), result in run_side_by_side(jobs, workers=self._spec.budget.workers, told=self._tell):
            if "failed" not in result:  # a failure is tried again when the run goes on
                result = {**result, "key": jobs[number, name].key(self._tasks[name])}
            self._trials.note(number, tasks={**self._trials[number].tasks, name: result})

    def bars(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """What a bag of words reaches on each task; see :func:`bars_of`."""
        return bars_of(self._tasks, known, told=self._told)

    def missed(self, item: Candidate) -> list[Constraint]:
        """The floors that a contender does not keep; one that it could not be asked for is not kept."""
        reached = item.reached
        return [floor for floor in self._spec.floors if floor.metric not in reached or broken((floor,), reached)]

    def said(self, item: Candidate) -> list[str]:
        """What a contender reached on tasks with floors, in words."""
        words = []
        for floor in self._spec.floors:
            result = item.tasks.get(str(floor.task), {})
            if "value" not in result:
                words.append(f"{floor.metric} unknown ({result.get('failed', 'not asked')})")
                continue
            value, low, high = (floor.show(result[name]) for name in ("value", "low", "high"))
            words.append(f"{floor.metric} {value} [{low} to {high}] (floor {floor.text})")
        return words

    def ship(self, winner: Candidate, target: Path) -> dict[str, Any]:
        """Copies the winner's classifiers beside it; what each reached, for the winner's file of promises."""
        told = {}
        for name, result in winner.tasks.items():
            source = self._place(winner, name)
            told[name] = {key: value for key, value in result.items() if key not in ("classes", "confusion", "key")}
            if (source / "classifier.json").exists():
                copy_classifier(source, target / FOLDER / name)
                told[name]["folder"] = f"{FOLDER}/{name}"
        return told

    def _place(self, item: Candidate, name: str) -> Path:
        return self._folder.trial(item.number) / FOLDER / name

    def _job(self, item: Candidate, name: str) -> TaskJob:
        asked = next(task for task in self._spec.tasks if task.label == name)
        arch = item.design.arch
        return TaskJob(
            task=asked.where(self._spec.folder),
            kind=asked.kind,
            arch=arch,
            form=item.design.weights,
            weights=str(self._folder.training(arch) / item.rungs[-1]["weights"]),
            tokenizer=str(self._store.tokenizer_path(arch.vocab_size)),
            folder=str(self._place(item, name)),
        )

    def _tell(self, running: Sequence[tuple[int, str]]) -> None:
        self._told(", ".join(f"trial {number} on {name}" for number, name in running))


def bars_of(
    tasks: Mapping[str, Task], known: Mapping[str, Any], *, told: Callable[[str], None] = lambda detail: None
) -> dict[str, Any]:
    """What a bag of words reaches on each task; a reason where it cannot be asked. ``known`` is not asked again."""
    from chipwise.training.tasks_baseline import baseline

    found = dict(known)
    for name, task in tasks.items():
        if found.get(name, {}).get("items") == task.identity:
            continue
        told(f"a bag of words on {name}")
        try:
            found[name] = {**asdict(baseline(task)), "items": task.identity}
        except MissingExtra as error:
            found[name] = {"failed": str(error)}
    return found


def run_side_by_side(
    jobs: Mapping[tuple[int, str], TaskJob],
    *,
    workers: int,
    told: Callable[[Sequence[tuple[int, str]]], None] = lambda running: None,
) -> list[tuple[tuple[int, str], dict[str, Any]]]:
    """Runs jobs in processes, ``workers`` at a time; results, or ``failed`` with the reason, in the order of jobs."""
    if not jobs:
        return []
    found: dict[tuple[int, str], dict[str, Any]] = {}
    with WorkerPool(COMMAND, min(workers, len(jobs)), name="task worker") as pool:
        names = {pool.submit(job.to_data()): name for name, job in jobs.items()}
        running: list[int] = []
        while pool.unfinished:
            for event in pool.poll(_LOOK_S):
                if event.kind != "progress":
                    result = event.kind == "result"
                    found[names[event.job]] = event.data if result else {"failed": event.data["message"]}
            if pool.running != running:
                running = pool.running
                told([names[number] for number in running])
    return [(name, found[name]) for name in jobs]

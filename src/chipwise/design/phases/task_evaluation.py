"""Evaluates the user's tasks at the end of a run: each contender is fine-tuned, exported and evaluated.

A contender's classifiers are stored in ``trials/<number>/tasks/<task>/`` and its results in the trial, so that a
resumed run evaluates nothing twice. Contenders are tuned in parallel processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.record import Record
from chipwise.core.workers import WorkerPool
from chipwise.design.limits import Constraint, broken
from chipwise.design.phases.trainings import require_disk
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec
from chipwise.design.run.trials import Candidate, Trials
from chipwise.errors import MissingExtra, SpecError
from chipwise.training.data.tokenizer import tokenizer_path
from chipwise.training.evaluations.classifier import FOLDER, copy_classifier
from chipwise.training.evaluations.data import Task, load_task
from chipwise.training.evaluations.worker import TaskJob

BAR_SHARE = 0.1  # CPU time of the TF-IDF baseline relative to tuning one model
TUNING_LEAST_S = 10.0  # CPU seconds that tuning may take even on a small task
CONTENDERS = 3  # two finalists and the reference design
SPARE = 3  # further candidates to evaluate if no finalist reaches the minimum scores
COMMAND = [sys.executable, "-m", "chipwise.training.evaluations.worker"]
_POLL_S = 0.1


def load_tasks(spec: RunSpec | StartSpec) -> dict[str, Task]:
    """Loads a run's tasks; the keys are the names that the run file gives them.

    Raises:
        DataError: A task's file or a label is missing; the message names the line.
        SpecError: A limit is on a metric that its task does not have.
        MissingExtra: The package for a built-in task is not installed.
    """
    tasks = {item.label: load_task(item.where(spec.folder), kind=item.kind) for item in spec.tasks}
    for floor in spec.floors:
        task = tasks[str(floor.task)]
        if floor.metric.partition("@")[0] != task.metric:
            raise SpecError(
                f"{floor.task} is a {task.kind} task; limit {task.metric}@{floor.task} instead",
                field=f"constraints.{floor.metric}",
            )
    return tasks


def planned_cpu_s(tasks: Mapping[str, Task]) -> float:
    """CPU seconds reserved for a run's tasks."""
    return sum((CONTENDERS + BAR_SHARE) * tuning_cpu_s(task) for task in tasks.values())


def tuning_cpu_s(task: Task) -> float:
    """CPU seconds planned for tuning one contender on a task; loads PyTorch."""
    from chipwise.training.evaluations.evaluate import expected_cpu_s

    return expected_cpu_s(task)


class TaskEvaluation:
    """Evaluates contenders and a TF-IDF baseline on the run's tasks.

    Args:
        spec: The run.
        tasks: Tasks by name, as :func:`load_tasks` returns them.
        trials: Where results are recorded.
        folder: The run's folder.
        on_progress: Called with a description of the current step."""

    def __init__(
        self,
        spec: RunSpec,
        tasks: Mapping[str, Task],
        trials: Trials,
        folder: RunFolder,
        *,
        on_progress: Callable[[str], None] = lambda detail: None,
    ) -> None:
        self._spec, self._tasks, self._trials = spec, tasks, trials
        self._folder, self._on_progress = folder, on_progress

    def evaluate(self, contenders: Sequence[Candidate]) -> None:
        """Evaluates every contender on every task, unless the result is already known.

        The CPU time reserved for a task is divided among the contenders of the first call; contenders of later calls
        get the share planned for one contender.

        Raises:
            StorageError: The disk is full.
        """
        jobs: dict[tuple[int, str], TaskJob] = {}
        shares = 1.0 if any(item.tasks for item in contenders) else max(1.0, CONTENDERS / max(1, len(contenders)))
        for item in contenders:
            for name, task in self._tasks.items():
                job = self._job(item, name, max(TUNING_LEAST_S, shares * tuning_cpu_s(task)))
                if item.tasks.get(name, {}).get("key") != job.key(task):
                    jobs[item.number, name] = job
        for (number, name), result in run_side_by_side(jobs, workers=self._spec.budget.workers, on_progress=self._show):
            require_disk(str(result.get("failed", "")), self._folder.path)
            if "failed" not in result:  # a failure is tried again when the run is resumed
                result = {**result, "key": jobs[number, name].key(self._tasks[name])}
            self._trials.note(number, tasks={**self._trials[number].tasks, name: result})

    def missed(self, item: Candidate) -> list[Constraint]:
        """The minimum scores that a contender misses, including those on tasks that could not be evaluated."""
        reached = item.reached
        return [floor for floor in self._spec.floors if floor.metric not in reached or broken((floor,), reached)]

    def ship(self, winner: Candidate, target: Path) -> dict[str, dict[str, object]]:
        """Copies the winner's classifiers to the folder ``target``; returns their scores for ``chipwise.json``."""
        found: dict[str, dict[str, object]] = {}
        for name, result in winner.tasks.items():
            source = self._place(winner, name)
            found[name] = {key: value for key, value in result.items() if key not in ("classes", "confusion", "key")}
            if (source / "classifier.json").exists():
                copy_classifier(source, target / FOLDER / name)
                found[name]["folder"] = f"{FOLDER}/{name}"
        return found

    def _place(self, item: Candidate, name: str) -> Path:
        return self._folder.trial(item.number) / FOLDER / name

    def _job(self, item: Candidate, name: str, cpu_s: float) -> TaskJob:
        spec = next(task for task in self._spec.tasks if task.label == name)
        arch = item.design.arch
        return TaskJob(
            task=spec.where(self._spec.folder),
            kind=spec.kind,
            arch=arch,
            weight_format=item.design.weights,
            weights=str(self._folder.training(arch) / str(item.rungs[-1].weights)),
            tokenizer=str(tokenizer_path(self._folder.corpus, arch.vocab_size)),
            folder=str(self._place(item, name)),
            cpu_s=cpu_s,
        )

    def _show(self, running: Sequence[tuple[int, str]]) -> None:
        self._on_progress(", ".join(f"trial {number} on {name}" for number, name in running))


def bag_of_words(
    tasks: Mapping[str, Task], known: Mapping[str, object], *, on_progress: Callable[[str], None] = lambda detail: None
) -> dict[str, object]:
    """Result of the TF-IDF baseline for each task, or why it failed; results in ``known`` are reused."""
    from chipwise.training.evaluations.baseline import baseline

    found: dict[str, object] = dict(known)
    for name, task in tasks.items():
        if Record(found).record(name).data.get("items") == task.identity:
            continue
        on_progress(f"the TF-IDF baseline on {name}")
        try:
            found[name] = {**plain(baseline(task)), "items": task.identity}
        except MissingExtra as error:
            found[name] = {"failed": str(error)}
    return found


def run_side_by_side(
    jobs: Mapping[tuple[int, str], TaskJob],
    *,
    workers: int,
    on_progress: Callable[[Sequence[tuple[int, str]]], None] = lambda running: None,
) -> list[tuple[tuple[int, str], dict[str, object]]]:
    """Runs ``jobs`` in ``workers`` processes; returns, in the order of ``jobs``, results or ``{"failed": reason}``."""
    if not jobs:
        return []
    found: dict[tuple[int, str], dict[str, object]] = {}
    with WorkerPool(COMMAND, min(workers, len(jobs)), name="task worker") as pool:
        names = {pool.submit(job.to_data()): name for name, job in jobs.items()}
        running: list[int] = []
        while pool.unfinished:
            for event in pool.poll(_POLL_S):
                if event.kind != "progress":
                    result = event.kind == "result"
                    found[names[event.job]] = event.data if result else {"failed": event.data["message"]}
            if pool.running != running:
                running = pool.running
                on_progress([names[number] for number in running])
    return [(name, found[name]) for name in jobs]

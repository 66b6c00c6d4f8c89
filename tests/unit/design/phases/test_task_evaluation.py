"""Judging in processes of their own: noted once, failures said, and the record that a report draws."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chipwise.design.limits import parse_constraints
from chipwise.design.phases import task_evaluation
from chipwise.design.phases.task_evaluation import TaskEvaluation, run_side_by_side
from chipwise.errors import MissingExtra, SpecError
from chipwise.model.arch.arch import uniform
from chipwise.training.evaluations.classifier import _FILES, FOLDER
from chipwise.training.evaluations.worker import TaskJob

ARCH = uniform(vocab_size=256, d_model=32, depth=1, heads=2, ffn_width=32, max_tokens=64)


@dataclass(frozen=True)
class Score:
    """Stands for what a bag of words reaches."""

    value: float


def job(folder: Path) -> TaskJob:
    return TaskJob(task="t.csv", arch=ARCH, weight_format="int8", weights="w", tokenizer="t", folder=str(folder))


@pytest.fixture
def worker(monkeypatch, tmp_path: Path):
    """Replaces the worker's work by a small program, which is given the job's folder as ``folder``."""

    def put(program: str) -> None:
        script = tmp_path / "worker.py"
        lines = "".join(f"    {line}\n" for line in program.splitlines())
        script.write_text(
            "import os, signal, sys, time\nfrom pathlib import Path\nfrom chipwise.errors import DataError\n"
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
    assert data["weight_format"] == "int8"
    assert TaskJob.from_data(data) == job(tmp_path)


def test_a_bag_of_words_is_computed_where_the_items_are_others(monkeypatch) -> None:
    counted: list[str] = []

    def baseline(task: SimpleNamespace) -> Score:
        counted.append(task.identity)
        return Score(value=len(counted))

    monkeypatch.setattr("chipwise.training.evaluations.baseline.baseline", baseline)
    tasks: Any = {"a": SimpleNamespace(identity="a1"), "b": SimpleNamespace(identity="b1")}
    first = task_evaluation.bag_of_words(tasks, {})
    assert first == {"a": {"value": 1, "items": "a1"}, "b": {"value": 2, "items": "b1"}}
    assert task_evaluation.bag_of_words(tasks, first) == first  # nothing is computed twice
    tasks["b"] = SimpleNamespace(identity="b2")
    assert task_evaluation.bag_of_words(tasks, first) == {"a": first["a"], "b": {"value": 3, "items": "b2"}}
    assert counted == ["a1", "b1", "b2"]


def test_what_was_judged_is_kept_and_a_failure_is_tried_again(monkeypatch, tmp_path: Path) -> None:
    """Trial 0 is evaluated, 1 was evaluated by another method, 2 fails: the next call evaluates only 2."""
    asked: list[list[int]] = []

    def judged(jobs: Any, **_: Any) -> list[Any]:
        asked.append([number for number, _ in jobs])
        failed, right = {"failed": "no worker"}, {"value": 0.9}
        return [(place, failed if place[0] == 2 else right) for place in jobs]

    notes = [{"t": {"key": "now", "value": 0.5}}, {"t": {"key": "before", "value": 0.1}}, {}]
    items = [SimpleNamespace(number=number, tasks=tasks) for number, tasks in enumerate(notes)]

    class Noting(list):
        def note(self, number: int, *, tasks: dict[str, Any]) -> None:
            self[number].tasks = tasks

    monkeypatch.setattr(task_evaluation, "run_side_by_side", judged)
    spec: Any = SimpleNamespace(budget=SimpleNamespace(workers=1))
    folder: Any = SimpleNamespace(path=tmp_path)
    evaluation = task_evaluation.TaskEvaluation(spec, {"t": None}, Noting(items), folder)  # type: ignore[dict-item,arg-type]
    allowed: list[float] = []

    def job_of(item: Any, name: str, cpu_s: float) -> SimpleNamespace:
        allowed.append(cpu_s)
        return SimpleNamespace(key=lambda task: "now")

    monkeypatch.setattr(evaluation, "_job", job_of)
    monkeypatch.setattr(task_evaluation, "tuning_cpu_s", lambda task: 17.0)
    evaluation.evaluate(items)  # type: ignore[arg-type]
    assert [item.tasks["t"] for item in items] == [
        {"key": "now", "value": 0.5},
        {"key": "now", "value": 0.9},
        {"failed": "no worker"},
    ]
    evaluation.evaluate(items)  # type: ignore[arg-type]
    assert asked == [[1, 2], [2]]
    assert set(allowed) == {17.0}  # another contender was evaluated before, with what was reserved for three
    allowed.clear()
    fresh: Any = [SimpleNamespace(number=0, tasks={})]
    evaluation.evaluate(fresh)
    assert allowed == [3 * 17.0]  # the only contender may take it all


def test_the_winners_classifiers_lie_beside_it_by_task(tmp_path: Path) -> None:
    """What each reached goes into its promises, without what is only a report's; one that failed has no folder."""
    found = object.__new__(TaskEvaluation)
    found._folder = SimpleNamespace(trial=lambda number: tmp_path / "trials" / str(number))
    source = tmp_path / "trials" / "3" / FOLDER / "organ"
    source.mkdir(parents=True)
    for name in _FILES:
        (source / name).write_text(name)
    results = {
        "organ": {"metric": "accuracy", "value": 0.8, "classes": ["a"], "confusion": [[1]], "key": "k"},
        "other": {"failed": "no"},
    }
    winner = SimpleNamespace(number=3, tasks=results)
    told = found.ship(winner, tmp_path / "winner")  # type: ignore[arg-type]
    assert told == {
        "organ": {"metric": "accuracy", "value": 0.8, "folder": f"{FOLDER}/organ"},
        "other": {"failed": "no"},
    }
    assert sorted(path.name for path in (tmp_path / "winner" / FOLDER / "organ").iterdir()) == sorted(_FILES)
    assert not (tmp_path / "winner" / FOLDER / "other").exists()


def test_a_floor_is_missed_where_it_is_broken_or_was_not_evaluated() -> None:
    found = object.__new__(TaskEvaluation)
    wanted = {"accuracy@organ": ">= 0.7", "accuracy@other": ">= 0.5"}
    found._spec = SimpleNamespace(floors=parse_constraints(wanted, tasks=("organ", "other")))
    reached = {"accuracy@organ": 0.6, "accuracy@other": 0.5}
    assert [floor.metric for floor in found.missed(SimpleNamespace(reached=reached))] == ["accuracy@organ"]  # type: ignore[arg-type]
    assert len(found.missed(SimpleNamespace(reached={}))) == 2  # type: ignore[arg-type]


def tasks_of(*files: Path, constraints: dict[str, str] | None = None) -> Any:
    """A run with these files as tasks."""
    wanted = parse_constraints(constraints or {}, tasks=[path.stem for path in files])
    items = [SimpleNamespace(label=path.stem, kind=None, where=lambda folder, path=path: str(path)) for path in files]
    return SimpleNamespace(tasks=items, folder=None, floors=wanted)


def test_tasks_are_read_by_name_and_a_floor_is_on_the_metric_that_a_task_has(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        rows = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    files = tmp_path / "mine.csv", tmp_path / "other.csv"
    found = task_evaluation.load_tasks(tasks_of(*files, constraints={"accuracy@mine": ">= 0.7"}))
    assert list(found) == ["mine", "other"]
    assert found["mine"].metric == "accuracy"
    with pytest.raises(SpecError, match="limit accuracy@other instead") as raised:
        task_evaluation.load_tasks(tasks_of(*files, constraints={"spearman@other": ">= 0.7"}))
    assert raised.value.field == "constraints.spearman@other"


def test_seconds_of_tasks_are_those_of_three_contenders_and_a_tenth(monkeypatch) -> None:
    monkeypatch.setattr("chipwise.training.evaluations.evaluate.expected_cpu_s", float)
    assert task_evaluation.planned_cpu_s({"a": 10.0, "b": 20.0}) == pytest.approx(3.1 * 30)  # type: ignore[dict-item]
    assert task_evaluation.planned_cpu_s({}) == 0


def test_a_job_is_of_the_longest_training_in_the_trials_own_folder(tmp_path: Path) -> None:
    found = object.__new__(TaskEvaluation)
    found._spec = tasks_of(tmp_path / "first.csv", tmp_path / "mine.csv")
    found._folder = SimpleNamespace(
        trial=lambda number: tmp_path / "trials" / str(number),
        training=lambda arch: tmp_path / "trainings" / str(arch.d_model),
        corpus=tmp_path / "corpus",
    )
    rungs = [SimpleNamespace(weights="short.safetensors"), SimpleNamespace(weights="long.safetensors")]
    item: Any = SimpleNamespace(number=3, design=SimpleNamespace(arch=ARCH, weights="int4"), rungs=rungs)
    made = found._job(item, "mine", 5.0)
    assert made.cpu_s == 5.0
    assert (made.task, made.kind, made.weight_format) == (str(tmp_path / "mine.csv"), None, "int4")
    assert made.weights == str(tmp_path / "trainings" / "32" / "long.safetensors")
    assert made.folder == str(tmp_path / "trials" / "3" / FOLDER / "mine")
    assert made.tokenizer.startswith(str(tmp_path / "corpus"))
    assert "256" in made.tokenizer.removeprefix(str(tmp_path))


def test_a_task_without_its_package_has_no_bag_of_words(monkeypatch) -> None:
    def missing(task: Any) -> Any:
        raise MissingExtra("datasets", "tasks")

    monkeypatch.setattr("chipwise.training.evaluations.baseline.baseline", missing)
    said: list[str] = []
    tasks: Any = {"a": SimpleNamespace(identity="a1")}
    found = task_evaluation.bag_of_words(tasks, {"b": {"value": 1}}, on_progress=said.append)
    assert found["b"] == {"value": 1}
    assert "datasets" in found["a"]["failed"]
    assert said == ["the TF-IDF baseline on a"]


def test_nothing_to_judge_starts_no_worker(monkeypatch) -> None:
    monkeypatch.setattr(task_evaluation, "WorkerPool", lambda *args, **options: pytest.fail("started"))
    assert run_side_by_side({}, workers=3) == []

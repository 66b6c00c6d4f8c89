"""Tasks in a run file: names, files, floors; and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.core.digest import plain
from chipwise.design.phases.task_evaluation import load_tasks, planned_cpu_s
from chipwise.design.run.spec import RunSpec, load_run, run_spec
from chipwise.errors import DataError, SpecError

EXAMPLES = Path(__file__).parents[4] / "examples"
PLAIN = {
    "name": "toy",
    "workload": {"prompt_tokens": 8, "new_tokens": 8},
    "space": {
        "d_model": [32, 64],
        "depth": [1],
        "vocab_size": [512],
        "layer": {"heads": [1], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64]},
        "max_tokens": 64,
    },
    "data": {},
}


def spec(**fields) -> RunSpec:
    return run_spec({**PLAIN, **fields}, file="toy.yaml")


def write_task(folder: Path, *, gap: int | None = None, labels=("a", "b")) -> Path:
    rows = [f"text {i},{'' if i == gap else labels[i % len(labels)]}" for i in range(100)]
    path = folder / "mine.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def test_a_name_and_a_file_are_tasks_and_may_have_floors() -> None:
    found = spec(
        tasks=["organ-system", "mine.csv", {"file": "deep/sizes.jsonl", "kind": "regression"}],
        constraints={"accuracy@mine": ">= 60 %", "spearman@sizes": ">= 0.5", "tpot_p99": "<= 1 ms"},
    )
    assert [task.label for task in found.tasks] == ["organ-system", "mine", "sizes"]
    assert [floor.metric for floor in found.floors] == ["accuracy@mine", "spearman@sizes"]
    assert run_spec(plain(found), file="spec.json") == found


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": ["organ-systems"]}, r"tasks\[0\].name: .*did you mean 'organ-system'"),
        ({"tasks": ["a.csv", "b/a.csv"]}, "two tasks have the same name"),
        ({"tasks": [{"file": "a.txt"}]}, "neither .csv nor .jsonl"),
        ({"tasks": [{"name": "chapters", "file": "a.csv"}]}, "either"),
        ({"tasks": [{"file": "a.csv", "kind": "ranking"}]}, "kind"),
        ({"tasks": ["chapters"], "constraints": {"accuracy@organ-system": ">= 85 %"}}, "chapters"),
        ({"constraints": {"accuracy@organ-system": ">= 85 %"}}, "list 'organ-system' under `tasks`"),
    ],
)
def test_what_is_wrong_is_named(fields, message) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**fields)


def test_a_run_without_tasks_is_the_run_that_it_was() -> None:
    assert spec().identity == spec(tasks=[]).identity
    assert spec().identity != spec(tasks=["organ-system"]).identity


def test_a_missing_label_is_named_before_anything_is_trained(tmp_path) -> None:
    write_task(tmp_path, gap=7)
    asked = spec(tasks=["mine.csv"], folder=str(tmp_path))
    with pytest.raises(DataError, match="line 9: the label is missing"):
        load_tasks(asked)


def test_a_floor_on_a_metric_that_the_task_does_not_have_is_refused(tmp_path) -> None:
    write_task(tmp_path)
    asked = spec(tasks=["mine.csv"], constraints={"spearman@mine": ">= 0.5"}, folder=str(tmp_path))
    with pytest.raises(SpecError, match="mine is a classification task; limit accuracy@mine instead"):
        load_tasks(asked)


def test_judging_is_planned_in_proportion_to_the_text(tmp_path) -> None:
    write_task(tmp_path)
    one = planned_cpu_s(load_tasks(spec(tasks=["mine.csv"], folder=str(tmp_path))))
    path = tmp_path / "mine.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(f"{line.split(',')[0] * 2},{line.split(',')[1]}" for line in lines[1:])]))
    two = planned_cpu_s(load_tasks(spec(tasks=["mine.csv"], folder=str(tmp_path))))
    assert 0 < 1.9 * one < two < 2.1 * one  # other texts, so others are held out
    assert planned_cpu_s({}) == 0


def test_the_examples_ask_their_tasks() -> None:
    assert [floor.text for floor in load_run(EXAMPLES / "clinic-task.yaml").floors] == [">= 85 %"]
    smoke = load_run(EXAMPLES / "smoke-task.yaml")
    assert load_tasks(smoke)["smoke-task"].classes == ("size", "speed")

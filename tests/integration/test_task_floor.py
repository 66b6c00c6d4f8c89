"""A search with a user's task and a floor: stopped, resumed, and its files."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml
from brief import measure_briefly
from runs import EXAMPLES

from chipwise import api
from chipwise.design.phases import task_evaluation
from chipwise.design.phases.finals import Finals
from chipwise.design.phases.halving import Halving
from chipwise.design.report.record import load
from chipwise.design.report.unmet import unmet
from chipwise.training.evaluations.classifier import Classifier

pytestmark = pytest.mark.slow


def spec(folder: Path, floor: str) -> Path:
    data = yaml.safe_load((EXAMPLES / "smoke-task.yaml").read_text())
    lines = (
        f"Pass {i} takes {i * 7 % 13} milliseconds and core {i % 4} holds {i * i % 101} numbers.\n"
        for i in range(9_000)
    )
    (folder / "text.txt").write_text("".join(lines))
    data["data"] = {"source": "files", "paths": ["text.txt"], "entries": "lines"}
    data["constraints"] |= {
        "tpot_p99": "<= 1 s",
        "ttft_p99": "<= 5 s",
        "accuracy@smoke-task": floor,
    }
    data["tasks"] = [str(EXAMPLES / "smoke-task.csv")]
    data["budget"] = {"tokens": "200k", "final": "40k", "workers": 2}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def started(folder: Path, smoke_run: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(smoke_run / "profile.json", folder)  # calibration has tests of its own
    return folder


@pytest.fixture(autouse=True, scope="module")
def _briefly():
    with pytest.MonkeyPatch.context() as patch:
        measure_briefly(patch.setattr)
        yield


@pytest.fixture(scope="module")
def run(smoke_run, tmp_path_factory) -> Path:
    """A search that was stopped after all evaluations and resumed."""
    home = tmp_path_factory.mktemp("floor")
    file, folder = spec(home, ">= 60 %"), started(home / "run", smoke_run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finals, "write_winner", interrupt)
        with pytest.raises(KeyboardInterrupt):
            api.search(file, out=folder)
    assert load(folder / "record.json").status == "partial"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_evaluation, "COMMAND", ["false"])  # whoever is judged again fails
        patch.setattr(Halving, "explore", refuse)  # whatever budget is left, the finalists stay those judged
        api.search(file, out=folder, resume=True)
    return folder


def interrupt(*_) -> None:
    raise KeyboardInterrupt


def refuse(*_) -> None:
    raise AssertionError("what was decided is open again")


def test_finalist_and_baseline_were_judged_once_and_the_floor_is_kept(run) -> None:
    record = load(run / "record.json")
    assert record.status == "finished"
    score = record.trial(record.winner).tasks["smoke-task"]
    assert score.failed is None
    assert score.value >= 0.6
    assert score.low <= score.value <= score.high
    assert sum(map(sum, score.confusion)) == score.test_items == 36
    assert "exported" in score.judged
    assert record.trial(record.baseline).tasks["smoke-task"].value is not None
    assert record.tasks[0].classes == ("size", "speed")
    assert "evaluating tasks" in record.budget.spent


def test_the_shipped_classifier_answers_what_was_promised(run) -> None:
    promised = json.loads((run / "winner" / "chipwise.json").read_text())["tasks"]["smoke-task"]
    classifier = Classifier(run / "winner" / promised["folder"])
    assert set(classifier.answer(["the weights hold 12 numbers", "a token takes 3 milliseconds"])) <= {"size", "speed"}
    reached, _ = api.evaluate(run / "winner", EXAMPLES / "smoke-task.csv", with_baseline=False)
    assert reached.value == promised["value"]
    assert "shipped classifier" in reached.judged


def test_card_page_and_table_show_it(run) -> None:
    card = (run / "card.md").read_text()
    assert "| accuracy on smoke-task, held-out items | not predicted |" in card
    assert "≥ 60 % | met |" in card
    page = (run / "report.html").read_text()
    assert '"type":"heatmap"' in page
    assert 'id="tasks"' in page
    with (run / "trials.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert float(next(row for row in rows if row["role"] == "winner")["reached_smoke-task"]) >= 0.6


def test_measuring_the_winner_again_leaves_floors_to_evaluate(run) -> None:
    assert {limit.metric for limit in api.measure(str(run / "winner"), keep=False).limits} == {
        "tpot_p99",
        "ttft_p99",
        "peak_memory",
    }


def test_a_floor_that_nobody_reaches_ends_with_the_nearest_and_its_figures_are_kept(smoke_run, tmp_path) -> None:
    coin = ["text,label", *(f"item {i} of {i * 7919 % 97},{'ab'[(i * 2654435761 >> 7) & 1]}" for i in range(150))]
    (tmp_path / "coin.csv").write_text("\n".join(coin))
    file = spec(tmp_path, ">= 60 %")
    data = yaml.safe_load(file.read_text())
    data["tasks"] = ["coin.csv"]
    del data["constraints"]["accuracy@smoke-task"]
    data["constraints"]["accuracy@coin"] = ">= 99 %"
    file.write_text(yaml.safe_dump(data))
    folder = started(tmp_path / "run", smoke_run)
    api.search(file, out=folder)
    record = load(folder / "record.json")
    assert record.status == "finished"
    assert [item.constraint.metric for item in unmet(record)] == ["accuracy@coin"]
    assert any("coin" in trial.tasks for trial in record.trials)

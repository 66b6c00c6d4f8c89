"""Tasks as a reader sees them: on the page, on the card, in the table of constraints and the CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest
from example_record import example_record

from chipwise.design.limits import parse_constraints
from chipwise.design.report import facts
from chipwise.design.report import insights as scored
from chipwise.design.report.card import card
from chipwise.design.report.csvfile import trials_csv
from chipwise.design.report.html import page
from chipwise.design.report.plots import confusion
from chipwise.design.report.record import RunRecord, TaskScore, TaskSummary
from chipwise.design.report.tables import constraint_table

SCORE = TaskScore(
    metric="accuracy",
    method="tune",
    value=0.9,
    low=0.85,
    high=0.94,
    train_items=80,
    test_items=20,
    confusion=((9, 1), (1, 9)),
    judged="exported int8 graph, in ONNX Runtime",
)
WORSE = replace(SCORE, value=0.8, low=0.74, high=0.85, confusion=((8, 2), (2, 8)))
BAR = replace(SCORE, method="TF-IDF + logistic regression", value=0.95, judged="", confusion=())


@pytest.fixture(scope="module")
def record() -> RunRecord:
    plain = example_record()
    scores = {plain.winner: SCORE, plain.baseline: WORSE}
    failed = next(t.number for t in plain.trials if t.number not in scores)
    scores[failed] = TaskScore(failed="tuning lost its finite loss")
    trials = tuple(
        replace(trial, tasks={"organ|system": scores[trial.number]}) if trial.number in scores else trial
        for trial in plain.trials
    )
    floor = parse_constraints({"accuracy@organ|system": ">= 85 %"}, tasks=None)
    return replace(
        plain,
        trials=trials,
        constraints=(*plain.constraints, *floor),
        tasks=(TaskSummary(name="organ|system", classes=("heart <b>", "lung"), bar=BAR),),
    )


def test_a_record_with_tasks_comes_back_from_json(record) -> None:
    assert RunRecord.from_plain(json.loads(json.dumps(record.to_plain()))) == record


def test_rows_go_from_winner_to_bag_of_words(record) -> None:
    rows = scored.task_rows(record)
    assert [row[1].split(" ")[0] for row in rows] == ["winner", "reference", "trial", "TF-IDF"]
    assert rows[0][2:] == ["90 %", "85 % to 94 %", "80", "20", "exported int8 graph, in ONNX Runtime, tuned"]
    assert rows[2][2:] == ["unknown", "", "", "", "tuning lost its finite loss"]


def test_a_floor_is_met_by_the_value_and_was_not_predicted(record) -> None:
    winner, baseline = record.trial(record.winner), record.trial(record.baseline)
    (check,) = [item for item in facts.checks(record, winner) if item.constraint.task]
    assert (check.status, check.shown) == ("met", ("not predicted", "90 % (85 % to 94 %)"))
    (other,) = [item for item in facts.checks(record, baseline) if item.constraint.task]
    assert other.status == "broken"
    asked_nobody = next(t for t in record.trials if not t.tasks)
    (unknown,) = [item for item in facts.checks(record, asked_nobody) if item.constraint.task]
    assert unknown.status == "unknown"
    assert len(constraint_table(record).rows) == len(record.constraints)


def test_the_card_has_the_tasks_and_the_floor(record) -> None:
    text = card(record)
    assert "| accuracy on organ\\|system, held-out items | not predicted | 90 % (85 % to 94 %) |" in text
    assert "## On its tasks" in text


def test_the_heat_map_holds_every_item_and_no_markup_of_a_file(record) -> None:
    plot = confusion.draw(record)
    (view,) = plot.views
    trace = view.figure["data"][0]
    assert trace["z"] == [[0.9, 0.1], [0.1, 0.9]]
    assert trace["text"] == [["9", "1"], ["1", "9"]]
    assert view.figure["layout"]["xaxis"]["ticktext"][0] == "heart &lt;b&gt;"
    assert "<b>heart &lt;b&gt;</b><br>answered lung<br>1 of 10" in trace["hovertext"][0]


def test_the_csv_has_a_column_a_task(record) -> None:
    rows = list(csv.DictReader(io.StringIO(trials_csv(record))))
    winner = next(row for row in rows if row["role"] == "winner")
    assert (winner["reached_organ|system"], winner["reached_low_organ|system"]) == ("0.9", "0.85")
    assert sum(row["reached_organ|system"] != "" for row in rows) == 2


def test_a_run_without_tasks_has_no_such_section() -> None:
    html = page(example_record())
    assert 'id="tasks"' not in html
    assert 'id="confusion"' not in html
    assert "On its tasks" not in card(example_record())


@pytest.mark.browser
def test_a_browser_draws_it(record, visit, tmp_path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(record))
    document, complaints = visit(path)
    assert not complaints
    assert "heart &lt;b&gt;" in document
    assert 'class="heatmaplayer' in document

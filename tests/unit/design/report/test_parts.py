"""All outputs are written for unfinished runs, with a text for each missing part."""

import dataclasses
import random
import re
from pathlib import Path
from unittest import mock

import pytest
from example_record import example_record, least
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.cli.show import result
from chipwise.design.report.card import card
from chipwise.design.report.csvfile import trials_csv
from chipwise.design.report.html import page
from chipwise.design.report.plots import draw
from chipwise.design.report.record import RunRecord, Trial
from chipwise.design.report.tables import constraint_table, final_table

WHOLE = example_record(trials=12)
EMPTY = least()
PARTS = [item.name for item in dataclasses.fields(RunRecord) if getattr(WHOLE, item.name) != getattr(EMPTY, item.name)]
OPTIONAL = [item.name for item in dataclasses.fields(Trial) if item.default is not dataclasses.MISSING] + [
    "predicted",
    "choices",
]


def without(trial: Trial, fields: list[str]) -> Trial:
    blank = Trial(number=trial.number, state=trial.state, summary=trial.summary, weights=trial.weights)
    return dataclasses.replace(trial, **{name: getattr(blank, name) for name in fields})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(lost=st.sets(st.sampled_from(PARTS)), share=st.sampled_from([0.0, 0.2, 0.6]), seed=st.integers(0, 2**16))
def test_a_run_with_parts_missing_is_reported(lost, share, seed):
    rng = random.Random(seed)
    kept = {name: getattr(EMPTY, name) for name in lost}
    trials = tuple(without(trial, [name for name in OPTIONAL if rng.random() < share]) for trial in WHOLE.trials)
    if "trials" in lost:
        refer = ("winner", "baseline", "knee", "front", "promised_measured")
        kept |= {name: getattr(EMPTY, name) for name in refer}
    record = dataclasses.replace(WHOLE, **{"trials": trials, **kept})
    with mock.patch("chipwise.core.page.document._plotly", return_value=""):  # 5 MB that say nothing here
        shown = page(record).split("<script>")[0]
    for text in (shown, card(record)):
        assert not re.search(r"\b(nan|None)\b", text)
    assert trials_csv(record).count("\n") >= 1
    assert final_table(record).columns
    assert len(constraint_table(record).rows) == len(record.constraints)
    assert RunRecord.from_plain(record.to_plain()) == record


@pytest.mark.parametrize("seed", range(4))
def test_other_runs_are_drawn_whole(seed):
    assert all(plot.views for plot in draw(example_record(seed)))


def test_a_run_that_came_to_no_end_says_so_and_how_to_go_on(capsys):
    result(EMPTY, Path("runs/toy"))
    said = " ".join(capsys.readouterr().out.split())
    assert f"{EMPTY.name}: 0 of 0 trials trained, no winner yet" in said
    assert "--out runs/toy --resume" in said
    assert "winner: runs" not in said
    result(WHOLE, Path("runs/toy"))
    said = " ".join(capsys.readouterr().out.split())
    assert "winner: runs/toy/winner" in said
    assert "--resume" not in said

"""Two runs are compared: what is shown of each, in tables, JSON and one picture, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from example_record import example_record

from chipwise.cli import main
from chipwise.design.limits import parse_constraints
from chipwise.design.report.record import save
from chipwise.design.report.two_runs import TwoRuns, names_of, notes, page, sections, to_data
from chipwise.errors import InputError

FIRST = example_record()
LIMITS = parse_constraints({"tpot_p99": "<= 1 us", "peak_memory": "<= 1 GB"})
SECOND = dataclasses.replace(FIRST, name="other", seed=7, constraints=LIMITS)
PARTIAL = dataclasses.replace(FIRST, winner=None, baseline=None, knee=None, status="partial", stopped="a full disk")


def both(second=SECOND) -> TwoRuns:
    return TwoRuns(names=("a", "b"), records=(FIRST, second))


def test_limits_stand_side_by_side_with_what_each_winner_does() -> None:
    head, rows = sections(both())["Limits"]
    assert head == ("limit on", "a: limit", "a: winner", "b: limit", "b: winner")
    found = {row[0]: row[1:] for row in rows}
    assert found["time per output token, P99"][2:] == ("≤ 1 us", "broken")
    assert found["peak memory"][2] == "≤ 1 GB"
    only_first = dataclasses.replace(SECOND, constraints=LIMITS[1:])
    found = {row[0]: row[1:] for row in sections(both(only_first))["Limits"][1]}
    assert found["time per output token, P99"][2:] == ("no limit", "")


def test_designs_promises_and_seeds_are_those_of_the_records() -> None:
    found = sections(both())
    winner = FIRST.trial(FIRST.winner)
    designs = {row[0]: row[1:] for row in found["Designs"][1]}
    assert designs["design"] == (winner.summary, winner.summary)
    assert designs["parameters"] == (f"{winner.parameters:,}",) * 2
    assert {row[0]: row[1:] for row in found["Runs"][1]}["seed"] == (str(FIRST.seed), "7")
    assert any(row[0] == "time per output token, P50" for row in found["Promised and measured"][1])


def test_a_run_that_has_not_finished_is_shown_with_a_note() -> None:
    runs = both(PARTIAL)
    assert "b has not finished; this shows what is known so far" in notes(runs)
    assert {row[0]: row[1:] for row in sections(runs)["Designs"][1]}["design"][1] == "no winner"
    assert to_data(runs)["runs"][1]["stopped"] == "a full disk"
    assert "has not finished" in page(runs)
    nothing = dataclasses.replace(PARTIAL, trials=(), front=(), promised_measured=())
    empty = TwoRuns(names=("a", "b"), records=(nothing, nothing))
    assert "Neither run has trained anything yet." in page(empty)
    json.dumps(to_data(empty))


def test_both_fronts_are_in_one_picture() -> None:
    text = page(both())
    data = json.loads(text.split('<script type="application/json" id="figures">')[1].split("</script>")[0])
    (figure,) = data["fronts"]
    names = [trace["name"] for trace in figure["data"]]
    assert names == ["front of a", "a (star: winner)", "front of b", "b (star: winner)"]
    assert text.count("<table") == 4


def test_what_makes_them_hard_to_compare_is_said() -> None:
    elsewhere = dataclasses.replace(FIRST, workload=dataclasses.replace(FIRST.workload, new_tokens=3), data=None)
    said = notes(both(elsewhere))
    assert "their requests differ, so times are not comparable" in said
    assert "their data differ, so losses are not comparable" in said
    assert not notes(both(FIRST))


def test_runs_of_two_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="a searched for text and b for vision"):
        both(dataclasses.replace(FIRST, task="vision"))


def test_names_are_those_of_the_folders_unless_alike() -> None:
    assert names_of([Path("runs/a"), Path("old/b")]) == ("a", "b")
    assert names_of([Path("runs/a"), Path("old/a")]) == ("runs/a", "old/a")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name, record in (("a", FIRST), ("b", SECOND), ("c", PARTIAL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.journal").touch()
        save(record, tmp_path / name / "record.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def run(monkeypatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["chipwise", "compare", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.usefixtures("folders")
def test_the_command_prints_writes_and_gives_json(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "a", "b", "--html", "both.html") in (0, None)
    printed = capsys.readouterr().out
    assert "Promised and measured" in printed
    assert "note: b: No candidate was found within the limits" in printed
    assert "front of a" in Path("both.html").read_text()
    assert run(monkeypatch, "a", "c", "--json") in (0, None)
    assert [item["status"] for item in json.loads(capsys.readouterr().out)["runs"]] == [FIRST.status, "partial"]


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a"], "one run named, but two are needed for a comparison"),
        (["a", "b", "c"], "3 runs named, but two are needed for a comparison"),
        (["a", "gpt2"], "a is a run and gpt2 is not"),
        (["a", "./a"], "name two different runs"),
        (["a", "b", "--device", "l4"], "--device only applies to models"),
        (["gpt2", "--html", "x.html"], "--html writes a page that compares two runs"),
        (["a", "b", "--html", "no/such/x.html"], "no/such"),
    ],
)
def test_anything_else_is_refused_in_one_line(arguments, said, monkeypatch, capsys) -> None:
    assert run(monkeypatch, *arguments) not in (0, None)
    complaint = capsys.readouterr().err
    assert said in complaint
    assert complaint.count("\n") == 1

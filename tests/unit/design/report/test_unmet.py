"""Messages and exit codes for a winner outside its limits and for a stopped run."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from example_record import example_record

from chipwise import api
from chipwise.cli import main, show
from chipwise.design.limits import parse_constraints
from chipwise.design.report.card import card
from chipwise.design.report.html import page
from chipwise.design.report.unmet import next_step, unmet, verdict

BUSY = "other processes used 40 % of the measured cores (limit 4 %)"


def outside(*, clean: bool, limits: dict | None = None, measures: bool = True, chance: float | None = None):
    """The example with limits that its winner breaks: half of its measured P99 unless others are given."""
    record = example_record()
    winner = record.trial(record.winner)
    limits = limits or {"tpot_p99": f"<= {winner.measured['tpot_p99'] / 2} s"}
    changed = dataclasses.replace(winner, clean=clean, reason=None if clean else BUSY)
    if chance is not None:
        changed = dataclasses.replace(changed, measured=None, chances={"tpot_p50": chance})
    trials = tuple(changed if item.number == winner.number else item for item in record.trials)
    target = dataclasses.replace(record.target, measures=measures, confidence=0.9)
    return dataclasses.replace(record, constraints=parse_constraints(limits), trials=trials, target=target)


def test_a_limit_broken_on_a_quiet_machine_is_broken_by_so_much() -> None:
    (found,) = unmet(outside(clean=True))
    assert (found.state, found.beyond) == ("broken", pytest.approx(1.0))
    said = verdict(outside(clean=True))
    assert said.startswith("No candidate was found within the limits; this is the one that comes closest: ")
    assert "100 % past its limit" in said
    assert "loosen these limits or raise the budget" in next_step(outside(clean=True))


def test_a_time_measured_on_a_busy_machine_is_unconfirmed_and_the_load_is_said() -> None:
    (found,) = unmet(outside(clean=False))
    assert found.state == "unconfirmed"
    said = verdict(outside(clean=False))
    assert said.startswith("Limits are not confirmed for this winner: ")
    assert BUSY in said
    assert "; predicted: " in said
    assert next_step(outside(clean=False)).startswith("To measure again, when the machine is idle: chipwise search")


def test_memory_is_what_it_is_however_busy_the_machine() -> None:
    (found,) = unmet(outside(clean=False, limits={"peak_memory": "<= 1 MB"}))
    assert found.state == "broken"


def test_a_prediction_with_less_than_the_wanted_confidence_is_unlikely() -> None:
    limits = {"tpot_p50": "<= 1 us"}
    (found,) = unmet(outside(clean=True, limits=limits, measures=False, chance=0.4))
    assert found.state == "unlikely"
    assert "is 40 %, but at least 90 % is required" in found.why
    assert not unmet(outside(clean=True, limits={"tpot_p50": "<= 1 s"}, measures=False, chance=0.95))


def test_a_winner_within_its_limits_and_soft_ones_have_nothing_to_tell() -> None:
    assert not unmet(example_record())
    assert verdict(example_record()) == next_step(example_record()) == ""
    soft = {"tpot_p99": {"limit": "<= 1 us", "penalty": "10 %"}}
    assert not unmet(outside(clean=True, limits=soft))


@pytest.mark.parametrize("clean", [True, False])
def test_page_card_terminal_and_exit_code_say_the_same(clean, tmp_path, monkeypatch, capsys) -> None:
    record = outside(clean=clean)
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setattr(api, "report", lambda folder: record)
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["chipwise", "report", str(tmp_path), *options])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == show.UNMET == 4
        printed = capsys.readouterr().out
        assert options or verdict(record) in printed
    assert f"chipwise search FILE --out {tmp_path} --resume" in shown(record, tmp_path, capsys)
    words = " ".join(verdict(record).split()[:6])
    assert words in page(record)
    assert words in card(record)


def shown(record, folder, capsys) -> str:
    show.result(record, folder)
    return capsys.readouterr().out


def test_a_run_that_stopped_says_why_and_how_to_go_on(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    why = "budget: 3 s of CPU time are left, less than one final training of 18 s"
    record = dataclasses.replace(example_record(), winner=None, baseline=None, knee=None, status="partial", stopped=why)
    assert "larger budget, other limits or another seed" in next_step(record)
    said = shown(record, tmp_path, capsys)
    assert why in said
    assert f"  chipwise search FILE --out {tmp_path} --resume" in said
    assert "one final training of" in page(record)
    assert "It stopped: budget" in card(record)

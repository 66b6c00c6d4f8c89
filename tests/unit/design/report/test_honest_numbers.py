"""What a report may claim: limits by bounds, better beyond noise only, the test text, and what spoils a comparison."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from example_record import example_record

from chipwise.design.report import facts
from chipwise.design.report.card import card
from chipwise.design.report.html import page
from chipwise.design.report.record import Alternative, Continuation, Foreseen, RunRecord, TestScore
from chipwise.design.report.tables import constraint_table, final_table
from chipwise.training.tasks.metric import BITS_PER_BYTE

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return example_record()


def changed(record: RunRecord, number: int | None, **changes) -> RunRecord:
    trials = tuple(
        dataclasses.replace(trial, **changes) if trial.number == number else trial for trial in record.trials
    )
    return dataclasses.replace(record, trials=trials)


def printed(table) -> str:
    return "\n".join(line for line, _ in table.lines(100))


def status(record: RunRecord, metric: str) -> str:
    winner = record.trial(record.winner)
    return next(item.status for item in facts.checks(record, winner) if item.constraint.metric == metric)


@pytest.mark.parametrize(
    ("value", "high", "expected"),
    [
        (0.30e-3, 0.39e-3, "met"),  # the limit is 0.4 ms
        (0.30e-3, 0.41e-3, "probably met"),
        (0.30e-3, None, "probably met"),  # too few samples bound it
        (0.41e-3, 0.45e-3, "broken"),
    ],
)
def test_a_p99_limit_is_met_by_the_upper_bound_only(record, value, high, expected) -> None:
    measured = {**record.trial(record.winner).measured, "tpot_p99": value}
    bounds = {**record.trial(record.winner).measured_bounds, "tpot_p99": (0.29e-3, high)}
    known = changed(record, record.winner, measured=measured, measured_bounds=bounds)
    assert status(known, "tpot_p99") == expected
    for shown in (card(known), page(known), printed(constraint_table(known))):
        assert expected in shown
    if expected == "probably met":
        assert "probably met" in printed(final_table(known))


def test_limits_together_are_as_certain_as_the_least_certain(record) -> None:
    """One limit probably met, another at risk: neither the page nor the terminal calls the design probably within."""
    measured = {name: value for name, value in record.trial(record.winner).measured.items() if name != "peak_memory"}
    known = changed(record, record.winner, measured=measured, measured_bounds={})
    assert {status(known, "tpot_p99"), status(known, "peak_memory")} == {"probably met", "at risk"}
    assert "at risk, not measured: " in printed(final_table(known))
    (cells,) = re.findall(r"<tr><t[dh][^>]*>constraints</t[dh]>(.*?)</tr>", page(known), re.DOTALL)
    assert "at risk, not measured" in cells
    assert "probably met" not in cells


def test_an_old_record_without_bounds_meets_no_p99(record) -> None:
    known = changed(record, record.winner, measured_bounds={})
    assert status(known, "tpot_p99") == "probably met"
    assert status(known, "peak_memory") == "met"


def test_better_is_said_beyond_noise_only(record) -> None:
    """1.96 √2 · 0.56 % = 1.55 %: 1.5 % apart is noise, 1.6 % is not; a doubt of 2 % over entries widens it to 4.2 %."""
    assert facts.quality_verdict(record, 1.000, math.exp(0.0150), None) == "same"
    assert facts.quality_verdict(record, 1.000, math.exp(0.0160), None) == "better"
    assert facts.quality_verdict(record, math.exp(0.0160), 1.000, None) == "worse"
    assert facts.quality_verdict(record, 1.000, math.exp(0.0400), 0.02) == "same"
    assert facts.quality_verdict(record, 1.000, math.exp(0.0430), 0.02) == "better"


def test_the_noise_of_seeds_is_that_of_the_repeated_trainings() -> None:
    """Pooled standard deviation of the logarithm over trainings that differ in their seed alone."""
    groups: dict[tuple[str, ...], list[float]] = {}
    tables = (
        (next(BENCHMARKS.glob("winner-vs-baseline-*.csv")), ("contender", "design")),
        (BENCHMARKS / "claims-quality.csv", ("variant", "steps", "recipe")),
    )
    for path, names in tables:
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                key = (path.name, *(row[name] for name in names))
                groups.setdefault(key, []).append(math.log(float(row["bits_per_byte"])))
    several = [values for values in groups.values() if len(values) > 1]
    squares = sum(sum((value - sum(v) / len(v)) ** 2 for value in v) for v in several)
    freedom = sum(len(values) - 1 for values in several)
    assert math.sqrt(squares / freedom) == pytest.approx(BITS_PER_BYTE.seed_sd, rel=0.05)


def test_the_headline_states_the_test_text_where_it_is_known(record) -> None:
    known = changed(changed(record, record.winner, test_loss=1.234), record.baseline, test_loss=1.240)
    known = dataclasses.replace(known, test=TestScore(entries=50, bytes=9_000, difference_std_error=0.001))
    text = facts.comparison(known)
    assert "about as well as the reference design" in text
    assert "bits per byte of the test text about the same, within noise (1.234 against 1.240" in text
    assert "1.234 bits per byte of the test text" in card(known)
    assert "1.234" in page(known)
    assert "which also selected the winner" in facts.comparison(record)


def test_a_reference_design_outside_the_limits_shows_everywhere(record) -> None:
    measured = {**record.trial(record.baseline).measured, "tpot_p99": 0.5e-3}
    known = changed(record, record.baseline, measured=measured)
    assert "The reference design was measured outside its limit on TPOT P99" in facts.comparison(known)
    assert "broken: TPOT P99" in card(known)
    assert "The reference design was measured outside its limit on TPOT P99" in page(known)
    assert "broken" in printed(final_table(known))
    assert "outside" not in facts.comparison(record)


def test_a_busy_machine_is_in_the_headline(record) -> None:
    known = changed(record, record.winner, clean=False)
    text = facts.comparison(known)
    assert text.index("The machine was busy whenever the winner") < text.index("Winner against reference design")
    assert "busy" not in facts.comparison(record)


@pytest.mark.parametrize(("loss", "times_s", "said"), [(0.996, 1.3, True), (0.99, 1.3, False), (0.996, 0.9, False)])
def test_a_slower_design_that_is_as_good_is_named(record, loss, times_s, said) -> None:
    """0.4 % fewer bits are within the noise of seeds (0.56 %), 1 % are not; a faster design gets no such note."""
    winner = record.trial(record.winner)
    mine = facts.value(record, winner, "loss").value
    other = next(
        trial
        for trial in record.trials
        if trial.measured and trial.feasible and trial.number not in (record.winner, record.baseline)
    )
    measured = {**other.measured, "tpot_p50": times_s * winner.measured["tpot_p50"]}
    changes = {"quantised_loss": loss * mine, "loss": loss * mine, "measured": measured}
    text = facts.comparison(changed(record, other.number, **changes))
    assert (f"Trial {other.number} is about as good, within the noise of seeds" in text) == said
    assert "about as good" not in facts.comparison(record)


def test_what_the_models_write_stands_side_by_side(record) -> None:
    lines = (Continuation(prompt="A fever <is>", winner="a rise | of", baseline="the the"),)
    known = dataclasses.replace(record, continuations=lines)
    assert r"| A fever \<is\> | a rise \| of | the the |" in card(known)
    assert "A fever &lt;is&gt;" in page(known)
    assert "What it writes" not in card(record)
    assert RunRecord.from_plain(known.to_plain()) == known


def test_what_the_budget_bought_by_pencil(record) -> None:
    """Formats of one training count once. Seeds of text scatter by 0.56 %: √2 · 1.96 times that are 1.6 %."""
    first, *_ = record.trials
    lengths = ((9.0, 100), (9.0, 100), (9.0, 200), (11.0, 300), (600.0, 300))
    trials = tuple(
        replace(first, number=number, train_cpu_s=seconds, parameters=parameters)
        for number, (seconds, parameters) in enumerate(lengths)
    )
    bare = replace(record, winner=None, baseline=None, knee=None, front=(), promised_measured=())
    said = facts.bought(replace(bare, trials=trials))
    assert "paid for 3 training runs of 9 s to 11 s and 1 training run of 10 min." in said
    assert "with different seeds differ by up to 1.6 %" in said
    assert not facts.bought(replace(bare, trials=()))


def test_what_the_prior_said_stands_beside_what_came(record) -> None:
    told = Foreseen(expected=(1.25, 1.2, 1.3), loss=1.275, tau=0.456, trainings=12)
    said = facts.foreseen(replace(record, answer=replace(record.answer, foreseen=told)))
    assert "the prior expected for the winner was 1.250 (1.200 to 1.300)" in said
    assert "reached 1.275 on validation text" in said
    assert said.endswith("ranking of 12 designs and their ranking by first training runs was 0.46.")
    assert facts.foreseen(replace(record, answer=replace(record.answer, foreseen=None))) == ""


def test_a_reference_design_that_was_not_trained_is_expected(record) -> None:
    other = Alternative(summary="d96 L3", expected=(1.25, 1.2, 1.3))
    said = facts.comparison(replace(record, baseline=None, answer=replace(record.answer, alternatives=(other,))))
    assert "the whole budget could have trained the Llama-style transformer (d96 L3)" in said
    assert "1.250 (1.200 to 1.300; predicted from this run's trainings)" in said

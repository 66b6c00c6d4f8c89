"""Fits to simulated machines with known rates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.deploy.teach.checks import check, whole_table
from chipwise.deploy.teach.observations import MeasuredRow, Observations, observe, prior_deviation
from chipwise.deploy.teach.posterior import Frame, fit, settle
from chipwise.hardware import datasheet
from chipwise.predict.served.taught_pass import GROUPS

MODELS = ("gpt2", "gpt2-medium", "Qwen/Qwen2.5-0.5B", "HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-0.6B")
SHEET = datasheet.load("raspberry-pi-5")


def rows(*, of: str = "total", formats: tuple[str, ...] = ("q4_0", "q8_0")) -> list[MeasuredRow]:
    """Every model in every format at two lengths, timed as 1 s until a truth is put in."""
    return [
        MeasuredRow(number=n, model=model, weights=form, prompt_tokens=prompt, new_tokens=32, **{f"{of}_s": 1.0})
        for n, (model, form, prompt) in enumerate(
            ((model, form, prompt) for model in MODELS for form in formats for prompt in (64, 512)), start=2
        )
    ]


@pytest.fixture(scope="module")
def table() -> Observations:
    seen, errors = observe(rows(), SHEET)
    assert not errors
    return seen


def test_passes_add_up_to_what_the_sheet_predicts(table: Observations) -> None:
    sums = table.terms[..., : len(GROUPS)].sum(axis=-1)
    whole = (table.share * sums).sum(axis=1)
    assert whole == pytest.approx(table.sheet_s, rel=1e-9)


def test_a_machine_three_times_slower_is_learnt_from_four_rows(table: Observations) -> None:
    slow = replace(table, seconds=3 * table.sheet_s)
    known = slow.only([0, 5, 10, 15])
    logs, deviations = fit(known, common=prior_deviation(known)).predict(slow)
    assert np.exp(logs) == pytest.approx(slow.seconds, rel=0.1)
    assert (np.abs(logs - np.log(slow.seconds)) < 1.645 * deviations).all()


def test_a_group_that_is_slower_by_itself_is_found(table: Observations) -> None:
    """Decode products take twice as long; all else is as the sheet says: lengths tell them apart."""
    place = GROUPS.index("products of few rows")
    grown = table.terms.copy()
    grown[..., place] *= 2
    truth = (table.share * grown[..., : len(GROUPS)].sum(axis=-1)).sum(axis=1)
    seen = replace(table, seconds=truth)
    shown = [i for i in range(len(seen)) if i % 4 != 1]  # not q4_0 at 512
    posterior = fit(seen.only(shown), common=prior_deviation(seen))
    logs, _ = posterior.predict(seen)
    assert np.abs(np.exp(logs) / truth - 1).mean() < 0.03
    assert posterior.theta[1 + place] > posterior.theta[1 + GROUPS.index("products of many rows")]


def test_one_wrong_row_changes_little(table: Observations) -> None:
    seconds = table.sheet_s.copy()
    seconds[7] *= 20
    logs, _ = fit(replace(table, seconds=seconds), common=prior_deviation(table)).predict(table)
    assert np.exp(logs) == pytest.approx(table.sheet_s, rel=0.05)


def test_more_rows_never_make_a_prediction_less_sure(table: Observations) -> None:
    """With a known noise the posterior of a linear model only shrinks."""
    spreads = []
    for count in (2, 6, 20):
        known = replace(table, seconds=table.sheet_s).only(range(count))
        posterior = settle(Frame.of(known, common=0.5), 0.04)
        spreads.append(float(posterior.predict(table)[1][-1]))
    assert spreads[0] >= spreads[1] >= spreads[2]


def test_the_noise_of_a_table_is_learnt_from_it(table: Observations) -> None:
    """Twenty rows with 5 % noise about the sheet, and with none: between the usual 9 % and what is there."""
    noise = np.random.default_rng(0).normal(0, 0.05, len(table))
    noisy = fit(replace(table, seconds=table.sheet_s * np.exp(noise)), common=0.3).noise
    exact = fit(replace(table, seconds=table.sheet_s), common=0.3).noise
    assert 0.035 < noisy < 0.08
    assert exact < noisy


def test_intervals_hold_nine_of_ten_and_beat_the_sheet() -> None:
    rng = np.random.default_rng(3)
    measured = rows()
    seen, _ = observe(measured, SHEET)
    seconds = 1.7 * seen.sheet_s * np.exp(rng.normal(0, 0.03, len(seen)))
    found = check(measured, replace(seen, seconds=seconds))
    assert found.error is not None
    assert found.error.inside is not None
    assert found.error.sheet_mean is not None
    assert found.error.mean < 0.05 < found.error.sheet_mean
    assert 0.85 <= found.error.inside <= 1.0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda s: 1000 * s, "milliseconds written as seconds?"),
        (lambda s: s / 1000, "seconds written as milliseconds?"),
        (lambda s: 32 / s, "tokens/s written as seconds?"),
        (lambda s: 2.5 * s, "2.5 times what the other rows say"),
    ],
)
def test_a_row_with_a_wrong_unit_is_named(wrong, reason: str, table: Observations) -> None:
    seconds = 0.5 * table.sheet_s  # well below a second each, so that a rate looks like no time
    seconds[4] = wrong(seconds[4])
    flags = check(rows(), replace(table, seconds=seconds)).flags
    assert [flag.line for flag in flags] == [6]
    assert flags[0].reason == reason


def test_a_whole_table_in_milliseconds_is_said(table: Observations) -> None:
    assert not whole_table(replace(table, seconds=3 * table.sheet_s))
    assert "milliseconds written as seconds" in whole_table(replace(table, seconds=2000 * table.sheet_s))[0]
    assert "tokens/s written as seconds" in whole_table(replace(table, seconds=1 / table.sheet_s))[0]


def test_the_sheets_own_width_is_the_prior(table: Observations) -> None:
    assert prior_deviation(table) == pytest.approx(float(np.median(table.halfwidth)) / 1.645)
    assert math.exp(1.645 * prior_deviation(table)) > 1.2


def test_a_table_of_noise_is_no_better_than_the_sheet(table: Observations) -> None:
    """Times that scatter by a factor of two teach nothing; the sheet's own error is reported."""
    noise = np.random.default_rng(4).normal(0, 0.5, len(table))
    error = check(rows(), replace(table, seconds=table.sheet_s * np.exp(noise))).error
    assert error is not None
    assert error.sheet_mean == pytest.approx(float(np.mean(np.abs(np.exp(-noise) - 1))), rel=0.5)
    assert error.mean > 0.2

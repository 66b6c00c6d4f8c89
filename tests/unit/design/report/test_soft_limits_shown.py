"""Report texts on soft limits and on limits that are not measured here."""

from __future__ import annotations

import dataclasses
import re

import pytest
from example_record import example_record

from chipwise.design.limits import parse_constraints
from chipwise.design.report import facts
from chipwise.design.report.card import card
from chipwise.design.report.html import page
from chipwise.design.report.record import Elsewhere, RunRecord
from chipwise.design.report.tables import constraint_table, final_table
from chipwise.predict.cost.model import Predicted


def told(data: dict, **changes: object) -> RunRecord:
    record = example_record()
    return dataclasses.replace(record, constraints=parse_constraints(data), **changes)


def status(record: RunRecord) -> list[str]:
    return [item.status for item in facts.checks(record, record.trial(record.winner))]


def soft(share_of_tpot: float) -> RunRecord:
    record = example_record()
    limit_s = record.trial(record.winner).measured["tpot_p50"] * share_of_tpot
    return told({"tpot_p50": {"limit": f"<= {limit_s!r} s", "penalty": "10 %"}})


def test_past_a_soft_limit_bits_per_byte_count_as_more() -> None:
    record = soft(0.8)  # measured at 1.25 times the limit: 25 % past it, so 2.5 %
    winner = record.trial(record.winner)
    bits = facts.quality(record, winner).value
    assert status(record) == ["paid"]
    told_ = facts.paid(record, winner)
    assert f"counts as 2.5 % more: {bits * 1.025:.3f} instead of {bits:.3f}." in told_
    assert told_ in page(record).replace("\N{NO-BREAK SPACE}", " ")
    assert "2.5 % more" in card(record)
    assert "| exceeded, penalised |" in card(record)
    tables = (constraint_table(record), final_table(record))
    shown = "\n".join(line for table in tables for line, _ in table.lines(200))
    assert "exceeded, penalised" in shown
    assert "exceeded, penalised: TPOT P50" in shown
    assert "2.5 % more" in shown


def test_within_it_nothing_is_paid_and_without_one_nothing_is_said() -> None:
    record = soft(1.1)
    assert status(record) == ["met"]
    assert facts.paid(record, record.trial(record.winner)).endswith("count as more, by the share stated as penalty.")
    plain = example_record()
    assert facts.paid(plain, plain.trial(plain.winner)) == ""


def test_what_no_counter_measured_is_told_as_predicted() -> None:
    record = told({"joules_per_token": "<= 2 mJ", "usd_per_1k_tokens": "<= 1 USD"})
    winner = record.trial(record.winner)
    known = dataclasses.replace(
        winner,
        predicted={**winner.predicted, "joules_per_token": Predicted(value=1e-3, low=0.8e-3, high=1.2e-3)},
        measured={**winner.measured, "usd_per_1k_tokens": 0.002},
    )
    trials = tuple(known if trial.number == winner.number else trial for trial in record.trials)
    record = dataclasses.replace(record, trials=trials)
    assert status(record) == ["expected", "met"]
    text = card(record)
    assert "Energy: 1 J (expected, at the power in the run file)" in text
    price = re.search(r"Price: \\\$([\d.]+) per million input tokens, \\\$([\d.]+) per million output tokens", text)
    assert price is not None
    read, written = (float(each) for each in price.groups())
    request = record.workload
    paid = request.prompt_tokens * read + request.new_tokens * written
    assert paid == pytest.approx(2.0 * request.new_tokens, rel=0.02)  # 0.002 dollars for 1,000 new tokens, all in
    row = next(line for line in text.splitlines() if line.startswith("| energy of a new token"))
    assert [cell.strip() for cell in row.split("|")[2:7]] == [
        "1 mJ (0.8 to 1.2)",
        "not measured",
        "unknown",
        "≤ 2 mJ",
        "expected, not measured",
    ]


def test_a_limit_on_another_device_is_told_as_its_data_sheet_predicts() -> None:
    record = told({"tpot_p50": "<= 1 s"})
    limit = dataclasses.replace(parse_constraints({"power": "<= 30 W"})[0], metric="power@l4")
    there = Elsewhere(device="l4", title="NVIDIA L4", costs={str(record.winner): {"power": 28.7, "tpot_p50": 1e-4}})
    record = dataclasses.replace(record, constraints=(*record.constraints, limit), elsewhere=(there,))
    assert status(record) == ["met", "expected"]
    assert "mean power on l4" in card(record)
    assert "power 28.7 W" in page(record)
    assert "On other devices" in card(record)
    sure = dataclasses.replace(there, runtime="vllm", bounds={str(record.winner): {"power": (25.0, 33.0)}})
    record = dataclasses.replace(record, elsewhere=(sure,))
    assert status(record) == ["met", "at risk"]  # the upper end of the interval breaks it
    assert "power 28.7 W (25 to 33)" in card(record)
    assert "NVIDIA L4, vllm" in card(record)
    over = dataclasses.replace(limit, limit=28.0)
    assert status(dataclasses.replace(record, constraints=(over,))) == ["at risk"]


def test_a_record_keeps_its_soft_limits() -> None:
    record = soft(0.8)
    assert RunRecord.from_plain(record.to_plain()) == record

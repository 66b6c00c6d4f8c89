import csv
import dataclasses
import io
import re

import pytest
from example_record import example_record, least

from chipwise.design.report import facts
from chipwise.design.report.card import card
from chipwise.design.report.csvfile import trials_csv
from chipwise.design.report.tables import constraint_table, final_table


@pytest.fixture(scope="module")
def record():
    return example_record()


def printed(table) -> str:
    return "\n".join(line for line, _ in table.lines(80))


def test_the_card_answers_the_four_questions(record):
    text = card(record)
    for question in ("What chip?", "How fast?", "What do 1,000 tokens cost?", "Was it designed for this chip?"):
        assert f"## {question}" in text
    measured = record.trial(record.winner).measured
    assert (
        f"P50 {measured['tpot_p50'] * 1e6:.0f} µs (measured), P99 {measured['tpot_p99'] * 1e6:.0f} µs (measured)"
        in text
    )
    assert "Energy: unknown. Price: unknown." in text
    assert "AMD EPYC 9R14" in text
    assert "Licence: HPO licence" in text


def test_the_card_says_with_which_instructions_it_was_measured(record):
    assert "The instruction set of the processor used for measuring is unknown." in card(record)
    target = dataclasses.replace(record.target, instructions="AVX2 without VNNI")
    assert "Measured on a processor with AVX2 without VNNI;" in card(dataclasses.replace(record, target=target))


def test_a_thousand_tokens_take_the_requests_that_make_them(record):
    # 64 new tokens a request: one first token and 63 steps, so 1,000 tokens are 15.625 requests
    measured = record.trial(record.winner).measured
    seconds = 15.625 * (measured["ttft_p50"] + 63 * measured["tpot_p50"])
    assert facts.per_thousand(record)["time"].startswith(f"{seconds * 1e3:.0f} ms (from measured P50")


def test_every_constraint_has_a_row_with_promise_and_measurement(record):
    rows = [line for line in card(record).splitlines() if line.endswith("| met |")]
    assert len(rows) == len(record.constraints)
    assert all("to" in row.split("|")[2] for row in rows)


def test_a_baseline_that_is_ahead_is_said_to_be(record):
    turned = dataclasses.replace(record, winner=record.baseline, baseline=record.winner)
    assert "predicts the text worse than the reference design" in card(turned)
    same = dataclasses.replace(record, baseline=record.winner)
    assert "The reference design itself won" in card(same)


def test_without_a_winner_the_card_says_so():
    text = card(least())
    assert text.startswith("# begun: no winner yet\n\nNo candidate has been tried yet.")
    assert "How to load it" not in text
    assert not re.search(r"\b(nan|None|inf)\b", text)


def test_a_promise_that_was_missed_is_a_limit(record):
    far = tuple(
        dataclasses.replace(item, promised=(item.measured or 0) / 2)
        if item.trial == record.winner and item.metric == "tpot_p50"
        else item
        for item in record.promised_measured
    )
    assert facts.promises_missed(record, record.winner) == []
    text = card(dataclasses.replace(record, promised_measured=far))
    assert "Promised and measured differ by 25 % or more: time per output token, P50." in text


def test_names_cannot_mark_up_the_card(record):
    text = card(dataclasses.replace(record, name="a | b\n# `x` <b>", notes=("[x](http://y)",)))
    assert text.startswith(r"# a \| b \# \`x\` \<b\>: the winner")
    assert r"\[x\](http://y)" in text


def test_the_csv_gives_back_every_number(record):
    rows = list(csv.DictReader(io.StringIO(trials_csv(record))))
    assert len(rows) == len(record.trials)
    for row, trial in zip(rows, record.trials, strict=True):
        assert int(row["number"]) == trial.number
        assert row["role"] == record.role(trial)
        assert row["summary"] == trial.summary
        assert (float(row["loss"]) if row["loss"] else None) == trial.loss
        assert float(row["predicted_tpot_p50_s"]) == trial.predicted["tpot_p50"].value
        assert float(row["predicted_high_tpot_p50_s"]) == trial.predicted["tpot_p50"].high
        measured = (trial.measured or {}).get("peak_memory")
        assert (float(row["measured_peak_memory_bytes"]) if row["measured_peak_memory_bytes"] else None) == measured


def test_the_csv_of_no_trials_is_its_head():
    assert trials_csv(least()).count("\n") == 1


def test_names_with_commas_and_lines_stay_in_their_cell(record):
    odd = dataclasses.replace(record.trials[0], summary='a,"b"\nc')
    rows = list(csv.DictReader(io.StringIO(trials_csv(dataclasses.replace(record, trials=(odd, *record.trials[1:]))))))
    assert rows[0]["summary"] == 'a,"b"\nc'


def test_the_final_table_fits_a_terminal_and_says_what_is_predicted(record):
    text = printed(final_table(record))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "all met" in text
    assert "predicted" in text
    assert f"trial {record.winner}" in text
    assert f"{record.trial(record.winner).quantised_loss:.3f}" in text


def test_the_constraint_table_tells_met_from_broken_from_unknown(record):
    lines = printed(constraint_table(record)).splitlines()
    assert sum(line.endswith("  met") for line in lines) == len(record.constraints)
    broken = next(t for t in record.trials if t.measured and t.feasible is False)
    assert "broken" in printed(constraint_table(dataclasses.replace(record, winner=broken.number)))
    trained = next(t for t in record.trials if t.state == "trained")
    assert "not measured" in printed(constraint_table(dataclasses.replace(record, winner=trained.number)))
    nobody = dataclasses.replace(least(), constraints=record.constraints)
    assert printed(constraint_table(nobody)).count("unknown") >= len(record.constraints)


def test_only_a_measurement_meets_a_constraint(record):
    trained = next(t for t in record.trials if t.state == "trained")
    statuses = {check.status for check in facts.checks(record, trained)}
    assert statuses <= {"expected", "at risk"}

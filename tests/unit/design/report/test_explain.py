"""The answer in words: expectations are marked as such, and a briefly trained knee is called a proposal."""

from __future__ import annotations

import dataclasses

from example_record import example_record, least

from chipwise.design.report import insights as explain
from chipwise.design.report.html import page
from chipwise.design.report.record import Answer, Elsewhere, Relaxed, RunRecord

ANSWER = Answer(
    knee=1,
    knee_why="it keeps 52 % of what the front offers in bits_per_byte",
    knee_expected=1.351,
    relaxed=(
        Relaxed(
            limit="peak_memory",
            share=0.1,
            best={"bits_per_byte": (1.30, 1.25), "tpot_p50": (1e-4, 1e-4)},
            gain=0.0146,
            std=0.02,
            summary="d320 L5",
        ),
        Relaxed(limit="tpot_p99", share=0.1, gain=0.0),
        Relaxed(limit="tpot_p50@raspberry-pi-5", share=0.1, gain=None, summary="d64 L1"),
    ),
    importance={"bits_per_byte": {"depth": 0.2, "d_model": 0.6, "sharing": 0.001}, "tpot_p50": {"depth": 0.9}},
)


def explained() -> RunRecord:
    record = example_record()
    short = min((t for t in record.trials if t.train_cpu_s), key=lambda t: t.train_cpu_s)
    answer = dataclasses.replace(ANSWER, knee=short.number)
    return dataclasses.replace(record, answer=answer, knee=short.number)


def test_a_knee_that_was_trained_briefly_is_a_proposal() -> None:
    record = explained()
    words = explain.knee(record)
    assert f"The knee is trial {record.knee}" in words
    assert "It keeps 52 % of what the front offers" in words
    assert "1.351 bits per byte are expected after full training" in words
    assert "a suggestion, not a result" in words
    longest = max((t for t in record.trials if t.train_cpu_s), key=lambda t: t.train_cpu_s)
    assert "trained in full" in explain.knee(dataclasses.replace(record, knee=longest.number))
    assert "no bend" in explain.knee(dataclasses.replace(record, knee=None))


BEST = "bits/byte 1.300 → 1.250; predicted with ± 0.020 bits per byte"


def test_the_price_of_each_limit_is_a_row() -> None:
    dear, nothing, first = (explain.relaxed(example_record(), item) for item in ANSWER.relaxed)
    assert dear == [
        "peak memory",
        "+1.5 % of the front",
        "bits/byte 1.300 → 1.250; predicted with ± 0.020 bits per byte",
        "d320 L5",
    ]
    assert nothing == ["time per output token, P99", "nothing", "no change", ""]
    assert first[:2] == ["time per output token, P50 on raspberry-pi-5", "a first candidate"]


def test_choices_that_matter_come_first_and_those_that_do_not_are_left_out() -> None:
    assert explain.importance(ANSWER) == [["depth", "20 %", "90 %"], ["d_model", "60 %", "0 %"]]


def test_the_page_has_the_sections_where_there_is_something_to_say() -> None:
    record = explained()
    device = Elsewhere(
        device="raspberry-pi-5",
        title="Raspberry Pi 5",
        costs={str(record.winner): {"tpot_p50": 0.002}},
        front=(1, 2),
        carried={"raspberry-pi-5": 1.0},
        ranks={"raspberry-pi-5": 1.0},
    )
    shown = page(dataclasses.replace(record, elsewhere=(device,)))
    for text in ("Why this answer", "On other devices", "Raspberry Pi 5", "relaxing it by 10\u00a0% gains", "Sobol"):
        assert text in shown
    bare = page(least())
    assert "On other devices" not in bare
    assert "there is no knee" in bare


def test_a_record_keeps_its_answer() -> None:
    record = explained()
    assert RunRecord.from_plain(record.to_plain()) == record

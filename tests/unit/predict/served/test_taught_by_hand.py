"""What a taught machine's passes are made of, and how sure it is, on a device that is twice as slow as its sheet."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.core.statistics import Z90
from chipwise.deploy.teach.machine import teach_rows
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.hardware import datasheet
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.taught_pass import (
    FIGURES,
    GROUPS,
    SPREADS,
    TERMS,
    PassSums,
    basis,
    deviation,
    kernel,
    label_names,
    matrix,
    sequence,
    taught_seconds,
)
from chipwise.predict.served.taught_times import corrected, pass_sums

BOARD = datasheet.load("raspberry-pi-5")
ASKED = Request(
    model="gpt2",
    deployment=Deployment(device=BOARD, runtime="llama.cpp", weights="q8_0"),
    prompt_tokens=64,
    new_tokens=16,
)


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_groups_of_a_pass_add_up_to_its_seconds(factor: float) -> None:
    """What kernels leave is the host's; where they would take longer than the pass, each takes its share of it."""
    cost = cost_of(ASKED)
    seconds = factor * cost.prefill_s
    terms = pass_sums(cost.prefill, seconds, cost.group.setting, "prefill").terms[:, : len(GROUPS)]
    assert (terms >= 0).all()
    assert terms.sum() == pytest.approx(float(seconds[0]), rel=1e-9)


def test_a_taught_machine_is_as_sure_as_its_rows() -> None:
    """Eight exact rows leave far less doubt than a factor of e^Z90 to either side, and more than none."""
    rows = []
    for number, (model, prompt) in enumerate((m, p) for m in ("gpt2", "gpt2-medium") for p in (32, 64, 128, 256)):
        sheet = estimate_of(cost_of(ASKED.but(model=model, prompt_tokens=prompt)), 0)
        rows.append(
            MeasuredRow(
                number=number, model=model, runtime="llama.cpp", weights="q8_0", prompt_tokens=prompt, new_tokens=16,
                ttft_s=2 * sheet.ttft_s, tpot_s=2 * sheet.tpot_s,
            )
        )  # fmt: skip
    taught = teach_rows(BOARD, rows, name="board", source="eight rows")
    cost = cost_of(ASKED.but(device=replace(BOARD, taught=taught)))
    there = estimate_of(cost, 0)
    for name in ("ttft_p50", "tpot_p50"):
        metric = there.metric(name)
        half = math.log(metric.high / metric.value)
        assert 0.0 < half < 0.5 * Z90
        assert metric.low < metric.value < metric.high
    assert there.tpot_s / estimate_of(cost_of(ASKED), 0).tpot_s == pytest.approx(2.0, rel=0.05)
    # Alone, no step waits for another's prompt: the doubt of a token is that of the decode pass.
    sheet = cost_of(ASKED)
    steps = corrected(taught, sheet.decode, sheet.step_s, sheet.group.setting, "decode").found
    assert cost.log_halfwidth == pytest.approx(Z90 * deviation(taught, [(np.ones(1), steps)]), rel=1e-9)


def one_lesson(*, points: tuple[tuple[float, ...], ...] = ()) -> Any:
    """Two terms of which the first was twice as slow; decoding takes e^0.1 as long, and all e^0.2."""
    count = 1 + 2 + 1 + len(points)
    return Namespace(
        terms=("a", "b"),
        units=(1.0, 3.0),
        labels=("decode",),
        mean=(0.2, math.log(2.0), 0.0, 0.1, *([0.05] * len(points))),
        covariance=tuple(map(tuple, np.diag(np.full(count, 0.04)))),
        points=points,
        amplitude=0.3,
        reach=2.0,
        label_sd=0.5,
        noise=0.1,
        widen=1.5,
    )


class Namespace(SimpleNamespace):
    """One that can be remembered."""

    __hash__ = object.__hash__  # type: ignore[assignment]


FAR = np.zeros((1, len(FIGURES)))


def test_seconds_of_a_taught_pass_by_hand() -> None:
    """Terms of 5 and 1 s take 2 · 5 + 3 · 1 = 13 s, times e^0.3; a label that nobody taught adds its variance."""
    lesson, terms = one_lesson(), np.array([[5.0, 1.0]])
    known = taught_seconds(lesson, PassSums(terms=terms, figures=FAR, labels=("decode",)))
    assert known.seconds.tolist() == pytest.approx([13 * math.exp(0.3)])
    assert known.slopes.tolist() == [pytest.approx([1.0, 10 / 13, 3 / 13, 1.0])]
    assert known.own.tolist() == pytest.approx([0.3**2])
    assert known.factors.tolist() == [pytest.approx([2 * math.exp(0.3), 3 * math.exp(0.3)])]
    other = taught_seconds(lesson, PassSums(terms=terms, figures=FAR, labels=("prefill", "decode", "x")))
    assert other.own.tolist() == pytest.approx([0.3**2 + 2 * 0.5**2])
    strange = taught_seconds(lesson, PassSums(terms=terms, figures=FAR, labels=("prefill",)))
    assert strange.seconds.tolist() == pytest.approx([13 * math.exp(0.2)])
    assert strange.slopes[0, 3] == 0.0
    half = [(np.array([0.5]), known), (np.array([0.5]), strange)]
    slopes = [1.0, 10 / 13, 3 / 13, 0.5]
    variance = 0.04 * sum(slope**2 for slope in slopes) + (0.3**2 + 0.3**2 + 0.5**2) / 2 + 0.1**2
    assert deviation(lesson, half).tolist() == pytest.approx([1.5 * math.sqrt(variance)])


def test_a_pass_at_a_point_that_was_taught_is_as_sure_as_the_point() -> None:
    """At the point itself the smooth part is all of the amplitude; far from it nothing of it is known."""
    lesson, terms = one_lesson(points=(tuple([0.0] * len(FIGURES)),)), np.array([[5.0, 1.0]])
    there = taught_seconds(lesson, PassSums(terms=terms, figures=FAR, labels=("decode",)))
    assert there.slopes[0, 4] == pytest.approx(0.3, rel=1e-4)
    assert there.own.tolist() == pytest.approx([0.0], abs=1e-5)
    assert there.seconds.tolist() == pytest.approx([13 * math.exp(0.3 + 0.3 * 0.05)], rel=1e-4)
    away = taught_seconds(lesson, PassSums(terms=terms, figures=FAR + 99.0, labels=("decode",)))
    assert away.own.tolist() == pytest.approx([0.09])


def test_likeness_of_passes_is_a_bell_over_their_spreads() -> None:
    """One spread apart in one figure, at a reach of two: e^-1/8; in two figures e^-1/4."""
    moved = np.vstack([FAR, FAR, FAR])
    moved[1, 0] += SPREADS[0]
    moved[2, 2], moved[2, 5] = -SPREADS[2], SPREADS[5]
    assert kernel(moved, FAR, 2.0)[:, 0].tolist() == pytest.approx([1.0, math.exp(-1 / 8), math.exp(-1 / 4)])
    assert basis(moved, FAR[:0], amplitude=1.0, reach=2.0).shape == (3, 0)
    both = basis(moved, moved, amplitude=0.5, reach=2.0)
    assert both @ both.T == pytest.approx(0.25 * kernel(moved, moved, 2.0), abs=1e-5)


def test_names_of_what_shifts_a_pass_and_numbers_as_they_are_stored() -> None:
    assert label_names("decode", "vllm", "bf16", "") == (
        *("decode", "runtime vllm", "weights bf16"), *("decode, runtime vllm", "decode, weights bf16"),
    )  # fmt: skip
    assert label_names("decode", "vllm", "bf16", "x")[3] == "variant x"
    assert len(label_names("decode", "vllm", "bf16", "x")) == 7
    assert sequence(np.array([1 / 3, 2.0])) == (0.333333333, 2.0)
    assert matrix(np.array([[1 / 3], [2.0]])) == ((0.333333333,), (2.0,))
    assert PassSums(terms=np.ones((2, len(TERMS))), figures=FAR, labels=()).sheet_s.tolist() == [len(GROUPS)] * 2

"""What a taught machine's passes are made of, and how sure it is, on a device that is twice as slow as its sheet."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.core.statistics import Z90
from chipwise.deploy.teach.machine import teach_rows
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.hardware import datasheet
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.taught_pass import GROUPS, deviation
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

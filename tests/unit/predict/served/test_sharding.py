"""States of training dealt out to replicas: bytes and seconds of ZeRO's stages by pencil."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.model.ops.collective import CollectiveOp
from chipwise.predict.kernels import times_of
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.sharding import check_stage, communication_s, gathered_bytes, states_bytes

H100 = datasheet.load("h100-sxm")


@pytest.mark.parametrize(("zero", "each"), [(0, 16.0), (1, 2 + 2 + 12 / 64), (2, 2 + 2 / 64 + 12 / 64), (3, 16.0 / 64)])
def test_bytes_of_a_parameter_are_those_of_the_paper(zero: int, each: float) -> None:
    """7.5 G parameters on 64 replicas: 120, 31.4, 16.6 and 1.9 GB (Rajbhandari et al. 2019, figure 1)."""
    assert states_bytes(7.5e9, zero, 64) == pytest.approx(7.5e9 * each)
    figures = (120e9, 31.4e9, 16.6e9, 1.9e9)
    assert states_bytes(7.5e9, zero, 64) == pytest.approx(figures[zero], rel=0.02)
    assert states_bytes(7.5e9, zero, 1) == 7.5e9 * 16


def test_what_is_gathered_at_once() -> None:
    """Of 10 G parameters 8 in 4 layers: what is outside, two layers, and the gradients of one; of one alone."""
    assert gathered_bytes(8.0, 4, 10.0) == 2 * (2 + 2 * 2) + 2 * 2
    assert gathered_bytes(8.0, 1, 10.0) == 2 * (2 + 8) + 2 * 8
    assert gathered_bytes(8.0, 2, 10.0) == 2 * (2 + 8) + 2 * 4


def seconds(collective: Any) -> float:
    op = CollectiveOp(collective=collective, payload_bytes=2e9, devices=8)
    return float(np.max(times_of(op, H100, stack="vllm").latency_s))


def spent(zero: int, *, microbatches: int = 1, forward: float = 0.0, backward: float = 0.0, dp: int = 8) -> float:
    return communication_s(
        1e9,
        Plan(dp=dp),
        H100,
        stack="vllm",
        zero=zero,
        microbatches=microbatches,
        forward_s=forward,
        backward_s=backward,
    )


def test_what_is_sent_in_a_step() -> None:
    """One reduction of all; scattered, then gathered; or gathered twice and scattered, for each microbatch."""
    reduce, gather, scatter = (seconds(name) for name in ("all_reduce", "all_gather", "reduce_scatter"))
    assert spent(0) == pytest.approx(reduce)
    assert spent(1, microbatches=4) == pytest.approx(scatter + gather)
    assert spent(2, microbatches=4) == pytest.approx(4 * scatter + gather)
    assert spent(3, microbatches=4) == pytest.approx(4 * (2 * gather + scatter))
    assert spent(3, dp=1) == 0.0


def test_what_runs_beside_a_pass_is_hidden_by_it() -> None:
    reduce, gather, scatter = (seconds(name) for name in ("all_reduce", "all_gather", "reduce_scatter"))
    assert spent(0, backward=0.25 * reduce, forward=9.0) == pytest.approx(0.75 * reduce)
    assert spent(0, backward=2 * reduce) == 0.0
    assert spent(1, backward=9.0, forward=9.0) == pytest.approx(gather)  # new weights are waited for
    assert spent(2, backward=0.5 * scatter) == pytest.approx(0.5 * scatter + gather)
    assert spent(3, forward=0.5 * gather) == pytest.approx(1.5 * gather + scatter)
    assert spent(3, backward=0.5 * scatter, forward=9.0) == pytest.approx(gather + 0.5 * scatter)
    assert spent(3, forward=9.0, backward=9.0) == 0.0


def test_stages_that_there_are() -> None:
    for stage in range(4):
        check_stage(stage, Plan(dp=2))
    for wrong in (-1, 4):
        with pytest.raises(SpecError, match=r"zero: must be a stage from 0 .* to 3"):
            check_stage(wrong, Plan())
    with pytest.raises(SpecError, match="experts that are dealt out"):
        check_stage(1, Plan(dp=2, ep=2))
    check_stage(0, Plan(dp=2, ep=2))
    with pytest.raises(SpecError, match="whole number"):
        check_stage(1.5, Plan())  # type: ignore[arg-type]

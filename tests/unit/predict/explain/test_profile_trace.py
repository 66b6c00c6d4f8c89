"""The runtime's trace joined to predictions: medians of the right runs, every node at its operator."""

from __future__ import annotations

import pytest

from chipwise.api.testing.machines import round_machine
from chipwise.deploy.measure.profiled import PASSES, WARM_UP, durations, joined, measure_case
from chipwise.model.arch.arch import uniform
from chipwise.predict.explain.cases import calibrated_case
from chipwise.predict.explain.waterfall import waterfall

TINY = uniform(vocab_size=512, d_model=64, depth=2, heads=4, ffn_width=128, max_tokens=64)


def event(name: str, start: int, micros: int) -> dict[str, object]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": micros}


def test_a_trace_is_read_in_the_order_of_time() -> None:
    events = [event("b", 30, 7), event("a", 20, 5), event("a", 10, 3), {"cat": "Session", "name": "x", "dur": 1}]
    assert durations(events) == {"a": pytest.approx([3e-6, 5e-6]), "b": pytest.approx([7e-6])}


def test_layers_are_summed_and_medians_taken_of_one_phase() -> None:
    predicted = {"layers.0.ffn.up": 1.0, "layers.1.ffn.up": 2.0, "head": 4.0}
    seen = {"n0": [9.0, 1.0, 3.0], "n1": [9.0, 2.0, 2.0], "n2": [9.0, 8.0, 8.0], "n2_helper": [9.0, 1.0, 1.0]}
    found = joined("decode", predicted, ["n0", "n1", "n2"], seen, slice(1, None))
    rows = {row.operator: row for row in found.rows}
    assert (rows["layers.ffn.up"].predicted_s, rows["layers.ffn.up"].measured_s) == (3.0, 4.0)
    assert (rows["head"].measured_s, rows["head"].nodes) == (9.0, 2)  # with the node that the runtime split off
    assert (found.predicted_s, found.measured_s) == (7.0, 13.0)


def test_a_real_profile_covers_every_operator() -> None:
    pytest.importorskip("onnxruntime")
    asked = calibrated_case(TINY, round_machine(), prompt_tokens=16, new_tokens=8)
    found = measure_case(asked, threads=1, seed=0)
    assert [phase.phase for phase in found.phases] == ["prefill", "decode"]
    for phase in found.phases:
        assert all(row.measured_s > 0 for row in phase.rows)
        assert phase.predicted_s == pytest.approx(sum(cost.latency_s for cost in asked.operators(phase.phase)))  # type: ignore[arg-type]
    assert WARM_UP + PASSES < 64


def test_a_calibrated_waterfall_adds_up() -> None:
    asked = calibrated_case(TINY, round_machine(), prompt_tokens=16, new_tokens=8)
    for phase, total in (("prefill", asked.estimate.ttft_s), ("decode", asked.estimate.tpot_s)):
        assert sum(part.seconds for part in waterfall(asked, phase)) == pytest.approx(total)  # type: ignore[arg-type]

"""Calibration for ranking models: cases of every kind of node are built and timed, and random models have rates."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.calibrate.microbench import RANKING_KINDS, Bench, Case, cases
from chipwise.deploy.calibrate.node_rates import fit_terms
from chipwise.deploy.calibrate.random_models import random_rankers
from chipwise.errors import InputError, Unsupported
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.terms import terms


@pytest.mark.parametrize("kind", RANKING_KINDS)
def test_every_kind_of_node_is_built_and_timed(kind: str) -> None:
    case = next(case for case in cases(CALIBRATED["ranking"].cases()) if case.kind == kind)
    assert 0 < Bench(threads=1).time(case, seconds=0.001) < 1


def test_every_node_of_random_models_has_a_case() -> None:
    known = {term.model for case in cases(CALIBRATED["ranking"].cases()) for op in case.ops()[:1] for term in terms(op)}
    for design in random_rankers(40, seed=3):
        for placed in lower(design, Workload(), Phase.PREFILL):
            assert {term.model for term in terms(placed.op)} <= known | {"elementwise.gelu_tanh"}


def test_the_cost_of_a_call_is_told_by_two_chains() -> None:
    """Rates are fitted to all cases, each taking 2 µs a node and 10 µs a call: the call's share is taken off first."""
    wanted = [case for case in cases(CALIBRATED["ranking"].cases()) if case.kind in (*RANKING_KINDS, "relu")]
    fitted, _ = fit_terms([(case, 1e-5 + 2e-6 * case.count) for case in wanted])
    assert fitted["dot"]["node"] == pytest.approx(2e-6, rel=0.01)


def test_random_models_differ_and_rank_one_or_many() -> None:
    designs = random_rankers(30, seed=0)
    assert len({design.digest for design in designs}) == 30
    counts = np.array([design.arch.stem.candidates for design in designs])  # type: ignore[union-attr]
    assert (counts == 1).sum() == 10
    assert counts.max() >= 256
    assert {design.weights for design in designs} == {"fp32", "int8"}


def test_a_case_of_attention_has_its_requests() -> None:
    case = Case(kind="attention.pointwise.last", count=2, batch=3, past=10, rows=4, heads=2, head_size=8)
    ops = case.ops()
    assert len(ops) == 2
    assert (ops[0].batch, ops[0].queries, ops[0].pointwise) == (3, 4, True)  # type: ignore[attr-defined]


def test_what_cannot_be_calibrated_is_refused() -> None:
    import chipwise

    with pytest.raises(Unsupported, match="ranking models are measured in onnxruntime"):
        calibrate(runtime="llama.cpp", kind="ranking")
    with pytest.raises(InputError, match="each has a separate profile"):
        chipwise.calibrate(images=True, ranking=True)

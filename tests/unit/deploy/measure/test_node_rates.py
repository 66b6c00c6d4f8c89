"""Non-negative least squares against its own conditions, and calibration against a machine whose rates we chose."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.calibrate.learning import compare, fit_relative, rising
from chipwise.deploy.calibrate.microbench import Case, cases, with_fewer_large
from chipwise.deploy.calibrate.node_rates import fit_terms, time_cases
from chipwise.errors import MeasurementError, UnknownName
from chipwise.predict.cost.terms import terms


def toy_seconds(case: Case) -> float:
    """2 µs a run, 1 µs a node, and 1 ns a unit of every other feature; a streamed byte takes 10 ps."""
    total = 2e-6
    for op in case.ops():
        term = terms(op)[0]
        total += sum(1e-6 if name == "node" else 1e-9 * amount for name, amount in term.amounts.items())
        total += 1e-11 * term.streamed_bytes
    return total


def test_relative_fit_finds_rates_of_very_different_size_and_shrugs_off_a_disturbed_row() -> None:
    generator = np.random.default_rng(0)
    features = generator.uniform(0.1, 1, (40, 2)) * [1.0, 1e6]
    seconds = features @ [1e-6, 1e-12]
    seconds[3] *= 3
    assert fit_relative(features, seconds) == pytest.approx([1e-6, 1e-12], rel=0.1)


def test_rising_basis_by_hand() -> None:
    basis = rising((1, 4, 16), (0.5, 1, 2, 4, 16, 64))
    assert basis.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0.5, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("chosen", [cases(), with_fewer_large(cases())])
def test_a_machine_with_known_rates_is_found_again(chosen: list[Case]) -> None:
    rates, curves = fit_terms([(case, toy_seconds(case)) for case in chosen])
    assert rates["elementwise.relu"] == pytest.approx({"node": 1e-6, "value": 1e-9}, rel=0.01)
    assert rates["norm.rmsnorm"]["node"] == pytest.approx(1e-6, rel=0.05)
    curve = curves["matmul.fp32.vector"]
    assert list(curve.s_per_byte) == sorted(curve.s_per_byte)
    assert curve.s_per_byte[0] == pytest.approx(1e-11, rel=0.2)


def test_a_brief_calibration_times_one_large_matrix_of_each_format() -> None:
    """The largest one, so that bytes beyond the caches (30 ps each above 10 MB, else 10) are not taken for fast."""
    chosen = with_fewer_large(cases())
    large = [case for case in chosen if case.large]
    assert sorted(case.weights for case in large) == ["fp32", "int4", "int8"]
    assert min(case.stored_bytes for case in large) > 6e7
    assert len(chosen) > 0.9 * len(cases())
    timed = [(case, toy_seconds(case) + 2e-11 * max(0.0, case.stored_bytes - 1e7)) for case in chosen]
    curve = fit_terms(timed)[1]["matmul.fp32.vector"]
    assert curve.s_per_byte[-1] > 2e-11


def test_what_leaves_the_caches_is_found_where_cases_are_large_enough() -> None:
    """Rates of a machine whose far values take 3 ns each; without large cases they have no rate rather than a guess."""

    def timed(chosen: list[Case]) -> list[tuple[Case, float]]:
        extra = [sum(2e-9 * terms(op)[0].amounts.get("far", 0.0) for op in case.ops()) for case in chosen]
        return [(case, toy_seconds(case) + more) for case, more in zip(chosen, extra, strict=True)]

    rates, _ = fit_terms(timed(cases(CALIBRATED["ranking"].cases())))
    for kind in ("dot", "attention.softmax.whole", "norm.rmsnorm", "elementwise.relu"):
        assert rates[kind]["far"] == pytest.approx(3e-9, rel=0.05)
    assert "far" not in fit_terms(timed(cases()))[0]["norm.rmsnorm"]


def test_small_graphs_are_timed_in_a_child() -> None:
    chosen = [
        Case(kind="relu", count=4, k=64),
        Case(kind="matmul", count=2, rows=1, k=32, n=64, weights="int8"),
        Case(kind="matmul", count=2, rows=4, k=32, n=64, weights="int4"),
        Case(kind="attention", count=2, rows=1, past=8, heads=2, head_size=16),
        Case(kind="skip_rmsnorm", count=2, k=64),
        Case(kind="layernorm", count=2, k=64),
        Case(kind="add", count=2, k=64),
        Case(kind="gather", count=2, k=64, n=16),
    ]
    seen: list[float] = []
    timed = time_cases(chosen, threads=1, on_progress=lambda phase, share: seen.append(share))
    assert [case for case, _ in timed] == chosen
    assert all(1e-7 < seconds < 1 for _, seconds in timed)
    assert seen[-1] == 1.0


def test_a_case_that_cannot_be_timed_is_an_error_that_says_why() -> None:
    with pytest.raises(MeasurementError, match=r"calibration: .*no-such-kind"):
        time_cases([Case(kind="no-such-kind", count=1)], threads=1, on_progress=lambda phase, share: None)


def test_a_runtime_that_does_not_exist_cannot_be_calibrated() -> None:
    with pytest.raises(UnknownName, match="onnxruntime"):
        calibrate(runtime="onnxrutime")


def test_errors_by_hand() -> None:
    found = compare([1.1, 0.9], [1.0, 1.0])
    assert found.mape == pytest.approx(0.1)
    assert found.kendall_tau is None  # equal measurements have no order
    assert compare([1.0], [1.0]).kendall_tau is None
    assert compare([1.0, 2.0], [1.0, 3.0]).kendall_tau == 1.0

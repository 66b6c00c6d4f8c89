"""Laws of fronts and hypervolumes, on a grid so that ties occur."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chipwise.design.strategies.acquisition import expected_gain, expected_improvement
from chipwise.design.strategies.pareto import hypervolume, non_dominated, ranks

points = st.integers(1, 4).flatmap(
    lambda m: arrays(float, st.tuples(st.integers(1, 9), st.just(m)), elements=st.integers(0, 4).map(float))
)
quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(points)
def test_front_is_what_nobody_dominates(F: np.ndarray) -> None:
    dominated = [any((a <= b).all() and (a < b).any() for a in F) for b in F]
    assert non_dominated(F).tolist() == [not item for item in dominated]
    assert (ranks(F) == 0).tolist() == non_dominated(F).tolist()


@quick
@given(points)
def test_hypervolume_counts_the_unit_cells(F: np.ndarray) -> None:
    corner = 5.0
    cells = np.indices((5,) * F.shape[1]).reshape(F.shape[1], -1).T
    covered = (F[:, None] <= cells[None]).all(axis=2).any(axis=0).sum()
    assert hypervolume(F, np.full(F.shape[1], corner)) == pytest.approx(covered)


@quick
@given(points)
def test_a_certain_candidate_is_expected_to_add_its_gain(F: np.ndarray) -> None:
    corner = np.full(F.shape[1], 5.0)
    sure = np.zeros_like(F[:1])
    if F.shape[1] > 1:
        sure[0, 0] = 1e-9  # one dear objective, known almost exactly
    front = F[1:][non_dominated(F[1:])] if len(F) > 1 else F[:0]
    expected = expected_gain(F[:1], sure, front, corner)[0]
    # Exact for one and two objectives; for more an integral over evenly spread places, a percent of the space coarse.
    coarse = 1e-6 if F.shape[1] <= 2 else 0.01 * float(np.prod(corner - F.min(axis=0)))
    gain = hypervolume(np.vstack([F[:1], front]), corner) - hypervolume(front, corner)
    assert expected == pytest.approx(gain, abs=coarse)


@quick
@given(st.floats(-5, 5), st.floats(0.01, 3), st.floats(-5, 5))
def test_expected_improvement_is_the_integral(mean: float, std: float, best: float) -> None:
    z = np.linspace(-9, 9, 20_001)
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    integral = (np.maximum(best - mean - std * z, 0) * density).sum() * (z[1] - z[0])
    found = expected_improvement(np.array([mean]), np.array([std]), np.array(best))[0]
    assert found == pytest.approx(integral, rel=2e-2, abs=1e-5)
    assert found >= 0


@quick
@given(points, st.integers(0, 8))
def test_hypervolume_never_falls_when_a_point_joins_or_the_corner_moves_out(F: np.ndarray, which: int) -> None:
    corner = np.full(F.shape[1], 5.0)
    fewer = np.delete(F, which % len(F), axis=0)
    assert hypervolume(fewer, corner) <= hypervolume(F, corner) + 1e-9
    assert hypervolume(F, corner) <= hypervolume(F, corner + 1) + 1e-9


@quick
@given(points)
def test_only_the_front_counts_and_the_order_of_points_does_not(F: np.ndarray) -> None:
    corner = np.full(F.shape[1], 5.0)
    whole = hypervolume(F, corner)
    assert hypervolume(F[non_dominated(F)], corner) == pytest.approx(whole)
    assert hypervolume(F[::-1], corner) == pytest.approx(whole)
    assert hypervolume(np.vstack([F, F]), corner) == pytest.approx(whole)


@quick
@given(points, st.integers(1, 5), st.integers(-3, 3))
def test_fronts_do_not_depend_on_units_and_volumes_scale_with_them(F: np.ndarray, factor: int, shift: int) -> None:
    moved, corner = factor * F + shift, np.full(F.shape[1], 5.0)
    assert non_dominated(moved).tolist() == non_dominated(F).tolist()
    assert ranks(moved).tolist() == ranks(F).tolist()
    volume = hypervolume(moved, factor * corner + shift)
    assert volume == pytest.approx(hypervolume(F, corner) * factor ** F.shape[1])


@quick
@given(points)
def test_each_rank_is_the_front_of_what_the_ranks_before_it_leave(F: np.ndarray) -> None:
    found = ranks(F)
    for rank in range(int(found.max()) + 1):
        left = found >= rank
        assert (found[left] == rank).tolist() == non_dominated(F[left]).tolist()


@quick
@given(st.floats(-3, 3), st.floats(0.01, 3), st.floats(-3, 3), st.floats(0, 2))
def test_expected_improvement_grows_with_doubt_and_with_the_value_to_beat(
    mean: float, std: float, best: float, more: float
) -> None:
    def improvement(std: float, best: float) -> float:
        return float(expected_improvement(np.array([mean]), np.array([std]), np.array(best))[0])

    here = improvement(std, best)
    assert here >= max(0.0, best - mean) - 1e-12  # Jensen: at least the improvement of the mean
    assert improvement(std + more, best) >= here - 1e-12
    assert improvement(std, best + more) >= here - 1e-12


@quick
@given(st.floats(-20, 8))
def test_expected_improvement_far_below_is_that_of_scipy(z: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    exact = stats.norm.pdf(z) + z * stats.norm.cdf(z)
    found = expected_improvement(np.array([0.0]), np.array([1.0]), np.array(z))[0]
    assert found == pytest.approx(exact, rel=1e-9)

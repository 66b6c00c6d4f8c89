"""Which candidates are chosen, where the answer can be seen."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.acquisition import expected_gain, most_informative


def _independent(std: np.ndarray):
    return lambda index, objective: np.diag(std[index, objective] ** 2)


def test_gain_with_one_dear_objective_is_that_of_the_general_rule() -> None:
    front = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    mean, std = np.array([[0.3, 0.4], [0.9, 0.2]]), np.array([[1e-4, 0.0], [1e-4, 0.0]])
    exact = expected_gain(mean, std, front, np.array([1.1, 1.1]))
    general = expected_gain(mean, np.full((2, 2), 1e-4), front, np.array([1.1, 1.1]))
    # (0.3, 0.4) adds 0.2 x 0.6 below (0, 1), then 0.5 x 0.1 below (0.5, 0.5)
    assert exact[0] == pytest.approx((0.5 - 0.3) * (1.0 - 0.4) + (1.0 - 0.5) * (0.5 - 0.4), rel=1e-2)
    assert exact == pytest.approx(general, rel=1e-2)


def test_a_batch_asks_different_questions() -> None:
    """Two candidates are the same to the model; the third is independent and slightly less promising."""
    mean, std = np.array([[0.0], [0.0], [0.05]]), np.ones((3, 1))
    cov = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.0], [0.0, 0.0, 1.0]])
    picked = most_informative(mean, std, lambda index, _: cov[np.ix_(index, index)], np.array([[0.0]]), 2)
    assert sorted(picked.tolist()) in ([0, 2], [1, 2])


def test_unlikely_candidates_wait() -> None:
    mean, std = np.zeros((2, 1)), np.ones((2, 1))
    picked = most_informative(mean, std, _independent(std), np.array([[0.5]]), 1, chance=np.array([0.01, 0.9]))
    assert picked.tolist() == [1]


def test_all_are_chosen_when_few_are_left() -> None:
    mean, std = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), np.tile([0.1, 0.0], (3, 1))
    picked = most_informative(mean, std, _independent(std), np.array([[0.5, 0.5]]), 9)
    assert sorted(picked.tolist()) == [0, 1, 2]


def test_what_was_observed_counts_in_the_units_of_the_candidates() -> None:
    """Trials reached 0 and 100. A sure 10 improves on neither; a likely -20 does: whatever the unit and its zero."""
    observed, mean, std = np.array([[0.0], [100.0]]), np.array([[10.0], [-20.0]]), np.array([[1.0], [1e-3]])
    for unit, zero in ((1.0, 0.0), (1e3, 0.0), (1e-3, 5.0)):
        picked = most_informative(
            unit * mean + zero,
            unit * std,
            _independent(unit * std),
            unit * observed + zero,
            1,
            chance=np.array([1.0, 0.51]),
        )
        assert picked.tolist() == [1]


def test_a_front_that_was_observed_leaves_little_to_what_it_dominates() -> None:
    """Seconds and bytes: of two candidates the cheaper one lies behind the front, the more expensive one before it."""
    observed = np.array([[1.0, 9e9], [2.0, 5e9], [4.0, 1e9]])
    mean, std = np.array([[2.5, 6e9], [3.0, 2e9]]), np.array([[0.1, 0.0], [0.1, 0.0]])
    assert most_informative(mean, std, _independent(std), observed, 1).tolist() == [1]
    turned = most_informative(mean[:, ::-1], std[:, ::-1], _independent(std[:, ::-1]), observed[:, ::-1], 1)
    assert turned.tolist() == [1]


def test_a_batch_is_conditioned_on_what_it_holds() -> None:
    """Three alike and one apart, all as promising: the second choice is the one apart, unless noise hides the first."""
    mean, std = np.zeros((4, 1)), np.ones((4, 1))
    cov = np.full((4, 4), 0.999)
    cov[3, :3] = cov[:3, 3] = 0.0
    np.fill_diagonal(cov, 1.0)

    def covariance(index: np.ndarray, _: int) -> np.ndarray:
        return cov[np.ix_(index, index)]

    chosen = most_informative(mean, std, covariance, np.array([[0.0]]), 2)
    assert 3 in chosen
    assert len(set(chosen.tolist())) == 2
    every = most_informative(mean, std, covariance, np.array([[0.0]]), 4, noise=np.array([0.5]))
    assert sorted(every.tolist()) == [0, 1, 2, 3]

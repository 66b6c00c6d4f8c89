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

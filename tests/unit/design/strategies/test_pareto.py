"""Fronts by pencil."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.design.strategies.pareto import crowding, hypervolume, knee, non_dominated, ranks


def test_layers_of_five_points() -> None:
    points = [[1, 4], [2, 2], [4, 1], [3, 3], [4, 4]]  # (3, 3) is behind (2, 2), and (4, 4) behind (3, 3)
    assert ranks(points).tolist() == [0, 0, 0, 1, 2]
    assert ranks(points, most=1).tolist() == [0, 0, 0, 1, 1]


def test_infeasible_points_rank_behind_by_violation() -> None:
    assert ranks([[9, 9], [1, 1], [0, 0]], [0.0, 0.5, 0.2]).tolist() == [0, 2, 1]


def test_equal_points_share_the_front() -> None:
    assert non_dominated([[1, 2], [1, 2], [1, 3]]).tolist() == [True, True, False]
    assert non_dominated([[1, 2, 3], [1, 2, 3], [1, 2, 4]]).tolist() == [True, True, False]
    assert non_dominated(np.zeros((0, 2))).tolist() == []


def test_crowding_by_hand() -> None:
    # spans are 4 and 4; the middle point's neighbours are 4 apart in both: 4/4 + 4/4
    assert crowding([[0, 4], [1, 1], [4, 0]]).tolist() == [np.inf, 2.0, np.inf]


@pytest.mark.parametrize(
    ("points", "reference", "volume"),
    [
        ([[2.0]], [5], 3.0),
        ([[1, 3], [2, 2], [3, 1]], [4, 4], 1 + 2 + 3.0),
        ([[0, 0, 0]], [2, 3, 4], 24.0),
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [2, 2, 2], 4.0),  # the common cube and one more of each
        ([[0, 0, 0, 1], [1, 1, 1, 0]], [2, 2, 2, 2], 8 + 1.0),  # 8 x 1, and 1 below it
        ([[5, 5]], [4, 4], 0.0),
        (np.zeros((0, 2)), [1, 1], 0.0),
    ],
)
def test_hypervolume_by_hand(points: list, reference: list, volume: float) -> None:
    assert hypervolume(points, reference) == pytest.approx(volume)


def test_gain_is_the_corner_that_is_new() -> None:
    def gain(point: list, front: list) -> float:
        return hypervolume([*front, point], [3, 3]) - hypervolume(front, [3, 3])

    assert gain([1, 1], [[0, 2], [2, 0]]) == pytest.approx(1.0)
    assert gain([2, 2], [[1, 1]]) == 0.0
    assert gain([4, 0], [[1, 1]]) == 0.0


def test_knee_is_farthest_from_the_chord() -> None:
    assert knee([[0, 10], [1, 2], [5, 1], [10, 0]]) == 1  # 0.1 + 0.2 is the least sum
    assert knee([[0, 2], [1, 1], [2, 0]]) is None  # a straight front has no knee
    assert knee([[0, 1], [1, 0]]) is None
    assert knee([[0, 1], [0, 1], [0, 1]]) is None
    assert knee([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0.4, 0.4, 0.4]]) == 3

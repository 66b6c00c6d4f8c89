"""Random search: the baseline for every other strategy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chipwise.design.strategies.history import History
from chipwise.design.strategies.strategy import Problem, Rows

_DRAWS = 200  # batches sampled before the space is enumerated instead
_LISTED = 100_000  # largest space to enumerate if samples repeat


class RandomSearch:
    """Random rows of the space, those within the free limits first."""

    def __init__(self, problem: Problem, *, seed: int) -> None:
        self.problem, self.history = problem, History(problem)
        self._rng = np.random.default_rng(seed)

    def ask(self, count: int) -> Rows:
        """Up to ``count`` new rows."""
        chosen = draw_new(self.problem, self.history, count, self._rng)
        self.history.mark_pending(chosen)
        return chosen

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Records tried rows, so that none is tried again."""
        self.history.tell(rows, objectives, violations)


def every_row(cardinalities: Rows) -> Rows:
    """All rows, (product of cardinalities, d), the last variable changing fastest.

    >>> every_row(np.array([2, 2])).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.indices(tuple(int(c) for c in cardinalities)).reshape(len(cardinalities), -1).T.astype(np.int64)


def draw_new(problem: Problem, history: History, count: int, rng: np.random.Generator) -> Rows:
    """Random new rows, up to ``count``; rows that break free limits only if there are no others."""
    found = np.zeros((0, len(problem.cardinalities)), np.int64)
    spare = found
    for _ in range(_DRAWS):
        if len(found) >= count:
            return found[:count]
        drawn = problem.draw(max(32, count), rng)
        held = (problem.price(drawn)[1] <= 0).all(axis=1)
        found = np.vstack([found, drawn[held]])
        found = found[history.is_new(found)]
        if len(spare) < count:
            spare = np.vstack([spare, drawn[~held]])
    if problem.size() <= _LISTED:
        rows = problem.canonicalise(every_row(problem.cardinalities))
        rows = rows[rng.permutation(len(rows))]
        held = (problem.price(rows)[1] <= 0).all(axis=1)
        spare = np.vstack([rows[held], rows[~held]])
    rows = np.vstack([found, spare])
    return rows[history.is_new(rows)][:count]

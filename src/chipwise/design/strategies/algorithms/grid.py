"""Grid search: visits every row of the space exactly once, in an order that is spread evenly from the start.

Rows are numbered so that the variables with the largest effects on costs vary most slowly. Each step of the visit goes
forward by about 0.618 times the number of rows; this stride and the number of rows have no common divisor. Therefore,
each row is visited once, and any run of consecutive visits is spread evenly over the decisive variables. In a space too
large to finish, the visited rows form a coarse grid that becomes finer.
"""

from __future__ import annotations

import math

import numpy as np

from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.strategy import Problem, Rows

_AT_ONCE, _BATCHES = 256, 100  # rows examined per batch, and batches examined before random rows are used instead


class Grid(BaseStrategy):
    """Grid search: proposes every row once. The seed determines the first row."""

    def __init__(self, problem: Problem, *, seed: int) -> None:
        super().__init__(problem, seed=seed)
        self._order = np.argsort(-Encoder(problem, seed=seed).effects, kind="stable")
        self._size = math.prod(int(c) for c in problem.cardinalities)
        self._stride = max(1, int(self._size / ((1 + math.sqrt(5)) / 2)))
        while math.gcd(self._stride, self._size) > 1:
            self._stride += 1
        self._at = int(self.rng.random() * self._size)
        self._visited = 0
        self._waiting: Rows = self.history.rows  # usable rows that were not returned yet

    def propose(self, count: int) -> Rows:
        """The next rows of the traversal that are :meth:`usable`."""
        self._waiting = self.usable(self._waiting)
        for _ in range(_BATCHES):
            if len(self._waiting) >= count or self._visited >= self._size:
                break
            self._waiting = self.usable(
                np.vstack([self._waiting, self._next(min(_AT_ONCE, self._size - self._visited))])
            )
        found, self._waiting = self._waiting[:count], self._waiting[count:]
        return found

    def _next(self, count: int) -> Rows:
        rows = np.zeros((count, len(self._order)), np.int64)
        for row in rows:
            number = self._at
            for column in self._order[::-1]:
                number, row[column] = divmod(number, int(self.problem.cardinalities[column]))
            self._at = (self._at + self._stride) % self._size
        self._visited += count
        return rows

"""A run whose first trainings are chosen by a strategy of the table instead of the run's own chooser.

Limits, budget, promotions and record are those of every run; only the question which candidate is trained next is
answered by the strategy. It is made anew for each batch and told what the study holds, so that a search that was killed
asks for the same candidates again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chipwise.core.errors import ChipwiseError, SpecError
from chipwise.optim.strategies import make_strategy
from chipwise.optim.strategy import Problem, Strategy
from chipwise.pipeline.choosing import Chooser, Deferring, Observation
from chipwise.space.search_space import Rows

_TRIES = 20  # batches asked for before the screened candidates are drawn from


class StrategyChooser(Deferring):
    """Asks a strategy which candidates deserve the first trainings; see :class:`chipwise.pipeline.choosing.Chooser`.

    Args:
        name: Of the strategy.
        chooser: The run's own; it holds the problem and the screened candidates, and ranks what was trained.
        seed: Of what is drawn.

    Raises:
        SpecError: The strategy cannot search this problem; the message says why.
    """

    def __init__(self, name: str, chooser: Chooser, *, seed: int) -> None:
        super().__init__(chooser)
        self._name, self._seed = name, seed
        self._make(chooser.problem, seed)

    def _make(self, problem: Problem, seed: int) -> Strategy:
        try:
            return make_strategy(self._name, problem, seed=seed)
        except ChipwiseError as error:
            raise SpecError(
                f"{self._name} cannot choose the trainings of this search: {error}", field="search.strategy"
            ) from None

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows within the limits, none of them in ``taken``."""
        problem = self._own.problem
        strategy = self._make(problem, self._seed + 1_000 * len(taken))
        gone = {tuple(int(i) for i in row) for row in taken}
        self._tell(strategy, observations, gone)
        picked: list[tuple[int, ...]] = []
        for _ in range(_TRIES):
            rows = strategy.ask(count - len(picked))
            if not len(rows):
                break
            held = problem.feasible(problem.price(rows)[1])
            picked += [key for key in map(tuple, rows[held].tolist()) if key not in gone and key not in picked]
            if len(picked) >= count:
                break
            if not held.all():
                strategy.tell(rows[~held], None)
        left = [key for key in map(tuple, self._spare(gone, picked)) if len(picked) < count]
        return np.array([*picked, *left[: count - len(picked)]], np.int64).reshape(-1, len(problem.cardinalities))

    def _tell(self, strategy: Strategy, observations: Sequence[Observation], gone: set[tuple[int, ...]]) -> None:
        """First trainings as results, all of the same length; taken rows without one as failures."""
        problem = self._own.problem
        first: dict[tuple[int, ...], Observation] = {}
        for item in observations:
            key = tuple(int(i) for i in item.row)
            if key in gone and (key not in first or item.cpu_s < first[key].cpu_s):
                first[key] = item
        if first:
            rows = np.array(list(first), np.int64)
            values = np.zeros((len(rows), len(problem.goals)))
            signs = [1.0 if goal.direction == "minimize" else -1.0 for goal in problem.goals]
            values[:, problem.free_goals] = problem.price(rows)[0] * np.array(signs)[problem.free_goals]
            values[:, problem.expensive_goals] = np.array([[item.bits_per_byte] for item in first.values()])
            strategy.tell(rows, values)
        lost = [key for key in gone if key not in first]
        if lost:
            strategy.tell(np.array(sorted(lost), np.int64), None)

    def _spare(self, gone: set[tuple[int, ...]], picked: Sequence[tuple[int, ...]]) -> list[list[int]]:
        """Screened candidates in an order of this batch's own, for a strategy that has no more ideas."""
        rng = np.random.default_rng([self._seed, len(gone)])
        rows = self._own.pool
        held = set(picked) | gone
        return [row for row in rows[rng.permutation(len(rows))].tolist() if tuple(row) not in held]

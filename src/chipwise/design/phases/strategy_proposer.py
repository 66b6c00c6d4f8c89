"""Lets a named strategy choose the candidates that a search trains first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Strategy
from chipwise.errors import ChipwiseError, SpecError
from chipwise.model.space.search_space import Rows

_TRIES = 20  # batches requested from a strategy before screened candidates are sampled instead


class StrategyProposer:
    """Proposes candidates by a named strategy instead of the run's own chooser.

    Limits, budget, promotions and record work as in any run. For each batch, a new instance of the strategy is created
    and given the study's results, so that a resumed search gets the same candidates.

    Args:
        name: Name of the strategy.
        chooser: The run's chooser, which provides the problem and the screened candidates.
        seed: Random seed.

    Raises:
        SpecError: The strategy cannot search this problem; the message says why.
    """

    def __init__(self, name: str, chooser: Chooser, *, seed: int) -> None:
        self._name, self._chooser, self._seed = name, chooser, seed
        self._make(seed)

    def _make(self, seed: int) -> Strategy:
        try:
            return make_strategy(self._name, self._chooser.problem, seed=seed)
        except ChipwiseError as error:
            raise SpecError(
                f"{self._name} cannot choose the designs of this search: {error}", field="search.strategy"
            ) from None

    def __call__(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows within the limits that are not in ``taken``."""
        problem = self._chooser.problem
        strategy = self._make(self._seed + 1_000 * len(taken))
        gone = {tuple(int(i) for i in row) for row in taken}
        self._replay(strategy, observations, gone)
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
        if len(picked) < count:  # the strategy has no more proposals
            rng = np.random.default_rng([self._seed, len(gone)])
            drawn = map(tuple, self._chooser.pool[rng.permutation(len(self._chooser.pool))].tolist())
            picked += [key for key in drawn if key not in gone and key not in picked][: count - len(picked)]
        return np.array(picked[:count], np.int64).reshape(-1, len(problem.cardinalities))

    def _replay(self, strategy: Strategy, observations: Sequence[Observation], gone: set[tuple[int, ...]]) -> None:
        """Passes the results of first training runs to the strategy, and reports rows without a result as failures."""
        problem = self._chooser.problem
        first: dict[tuple[int, ...], Observation] = {}
        for item in observations:
            key = tuple(int(i) for i in item.row)
            if key in gone and (key not in first or item.spent < first[key].spent):
                first[key] = item
        if first:
            rows = np.array(list(first), np.int64)
            values = np.zeros((len(rows), len(problem.goals)))
            signs = np.array([1.0 if goal.direction == "minimize" else -1.0 for goal in problem.goals])
            values[:, problem.free_goals] = problem.price(rows)[0] * signs[problem.free_goals]
            values[:, problem.expensive_goals] = np.array([[item.loss] for item in first.values()])
            strategy.tell(rows, values)
        lost = [key for key in gone if key not in first]
        if lost:
            strategy.tell(np.array(sorted(lost), np.int64), None)

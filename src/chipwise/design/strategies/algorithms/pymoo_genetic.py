"""pymoo's NSGA-II and NSGA-III as strategies.

It uses pymoo's operators (selection, simulated binary crossover, polynomial mutation, survival), but no generations:
every ``ask`` selects the population from all results, and breeds children until enough of them are new and within the
free limits. Any number of workers may therefore ask at any time, and a restart needs only the trials.

References:
    Blank and Deb, pymoo, IEEE Access 2020; Deb et al., NSGA-II, 2002; Deb and Jain, NSGA-III, 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.errors import MissingExtra

if TYPE_CHECKING:
    from pymoo.algorithms.base.genetic import GeneticAlgorithm
    from pymoo.core.population import Population
    from pymoo.core.survival import Survival

_BREEDINGS = 12


class Nsga2(BaseStrategy):
    """NSGA-II.

    Args:
        problem: The search problem.
        seed: Random seed.
        population: Number of trials that may be parents.

    Raises:
        MissingExtra: pymoo is not installed.
    """

    def __init__(self, problem: Problem, *, seed: int, population: int = 40) -> None:
        super().__init__(problem, seed=seed)
        self.population = population
        try:
            import pymoo.core.problem as core
        except ImportError:
            raise MissingExtra("pymoo", "pymoo") from None
        d, m, k = len(problem.cardinalities), len(problem.goals), len(problem.limits)
        self._described = core.Problem(
            n_var=d, n_obj=m, n_ieq_constr=k, xl=np.zeros(d), xu=problem.cardinalities - 1.0, vtype=int
        )
        self._algorithm = self._made()
        self._algorithm.random_state = self.rng

    def propose(self, count: int) -> Rows:
        """Children of the population once it is full; before that, none."""
        if self.history.trial_count + len(self.history.pending) < self.population or len(self.history) < 2:
            return self.initial_rows(count)
        parents = self._survivors()
        found = self.history.rows[:0]
        for _ in range(_BREEDINGS):
            children = self._algorithm.mating.do(
                self._described, parents, max(count, 10), algorithm=self._algorithm, random_state=self.rng
            )
            found = self.usable(np.vstack([found, np.rint(children.get("X").astype(float)).astype(np.int64)]))
            if len(found) >= count:
                return found
        for row in children.get("X").astype(float)[: count - len(found)]:
            found = self.usable(np.vstack([found, self.repaired(np.rint(row).astype(np.int64)[None])]))
        return found

    def _survivors(self) -> Population:
        from pymoo.core.population import Population

        history = self.history
        everyone = Population.new(
            X=history.rows.astype(float), F=history.objectives, G=history.violations, H=np.zeros((len(history), 0))
        )
        for individual in everyone:
            individual.evaluated.update({"F", "G", "H"})
        return self._survival().do(
            self._described, everyone, n_survive=self.population, algorithm=self._algorithm, random_state=self.rng
        )

    def _survival(self) -> Survival:
        return self._algorithm.survival

    def _operators(self) -> dict[str, object]:
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair

        return {"mutation": PM(eta=20, vtype=float, repair=RoundingRepair()), "eliminate_duplicates": True}

    def _made(self) -> GeneticAlgorithm:
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.repair.rounding import RoundingRepair

        crossover = SBX(eta=15, prob=0.9, vtype=float, repair=RoundingRepair())
        return NSGA2(pop_size=self.population, crossover=crossover, **self._operators())


class Nsga3(Nsga2):
    """NSGA-III, for three or more objectives: the population spreads along evenly distributed directions."""

    def _made(self) -> GeneticAlgorithm:
        from pymoo.algorithms.moo.nsga3 import NSGA3
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.selection.tournament import TournamentSelection
        from pymoo.util.ref_dirs import get_reference_directions

        m = len(self.problem.goals)
        partitions = 1
        while _directions(m, partitions + 1) <= self.population:
            partitions += 1
        self._directions = get_reference_directions("das-dennis", m, n_partitions=partitions if m > 1 else 0)
        return NSGA3(
            self._directions,
            pop_size=self.population,
            selection=TournamentSelection(func_comp=_by_violation_then_chance),
            crossover=SBX(eta=30, prob=1.0, vtype=float, repair=RoundingRepair()),
            **self._operators(),
        )

    def _survival(self) -> Survival:
        from pymoo.algorithms.moo.nsga3 import ReferenceDirectionSurvival

        return ReferenceDirectionSurvival(self._directions)  # pymoo's survival is stateful; the history has the state


def _directions(goals: int, partitions: int) -> float:
    """Number of evenly distributed directions."""
    import math

    return math.comb(goals + partitions - 1, partitions) if goals > 1 else math.inf


def _by_violation_then_chance(pop: Population, pairs: Rows, random_state: np.random.Generator, **_: object) -> Rows:
    """Comparison by violation, then at random; pymoo's own uses an unseeded generator."""
    violation = pop.get("CV")[:, 0]
    a, b = pairs[:, 0], pairs[:, 1]
    chance = np.where(random_state.random(len(pairs)) < 0.5, a, b)
    return np.where(violation[a] < violation[b], a, np.where(violation[b] < violation[a], b, chance))[:, None]

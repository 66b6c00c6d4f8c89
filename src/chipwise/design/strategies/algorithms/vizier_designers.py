"""Google Vizier's designers as strategies. They run in this process, so no Vizier service is needed.

The designer itself treats every objective as a black box, as it does without chipwise, and learns only whether a trial
met the limits. The cost model is used outside the designer: a suggestion that exceeds a free limit (one that needs no
trial), or that was tried before, is replaced with a nearby row. After a restart the designer receives all trials again.

References:
    Song et al., Open Source Vizier, AutoML 2022. Song et al., The Vizier Gaussian Process Bandit Algorithm, 2024,
    arXiv:2408.11527 (``gp``). Yang and Deb, Eagle Strategy, 2010 (``eagle``). Deb et al., NSGA-II, 2002 (``nsga2``).
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Literal

import numpy as np

from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.errors import InputError, MissingExtra

if TYPE_CHECKING:
    from vizier.algorithms import Designer
    from vizier.pyvizier import Trial

DesignerName = Literal["gp", "eagle", "nsga2"]
DESIGNERS = ("gp", "eagle", "nsga2")


class Vizier(BaseStrategy):
    """A designer of Google Vizier as a strategy.

    Args:
        problem: The search problem.
        seed: Random seed of the designer.
        designer: ``gp`` (Vizier's own default: a Gaussian process, upper confidence bounds and pure exploration),
            ``eagle`` (one objective only) or ``nsga2``.

    Raises:
        MissingExtra: google-vizier, or a package that the designer needs, is not installed.
        InputError: The designer does not exist, or it takes one objective and the problem has several.
    """

    def __init__(self, problem: Problem, *, seed: int, designer: DesignerName = "gp") -> None:
        super().__init__(problem, seed=seed)
        if designer not in DESIGNERS:
            raise InputError(f"designer: must be one of {', '.join(DESIGNERS)}, not {designer!r}")
        if designer == "eagle" and len(problem.goals) > 1:
            raise InputError("designer: eagle takes one objective; use gp or nsga2 for several")
        try:
            from vizier import algorithms, pyvizier
            from vizier.algorithms import designers
        except ImportError:
            raise MissingExtra("google-vizier", "vizier") from None
        self._vizier, self._algorithms = pyvizier, algorithms
        self._varied = [i for i, count in enumerate(problem.cardinalities) if count > 1]
        self._designer = self._made(designers, designer, seed) if self._varied else None
        self._told = self._trials = 0

    def _made(self, designers: ModuleType, name: DesignerName, seed: int) -> Designer:
        stated = self._vizier.ProblemStatement()
        for i in self._varied:
            stated.search_space.root.add_int_param(f"x{i}", 0, int(self.problem.cardinalities[i]) - 1)
        for number, goal in enumerate(self.problem.goals):
            minimise = self._vizier.ObjectiveMetricGoal.MINIMIZE
            stated.metric_information.append(
                self._vizier.MetricInformation(name=f"y{number}.{goal.name}", goal=minimise)
            )
        self._metrics = [f"y{number}.{goal.name}" for number, goal in enumerate(self.problem.goals)]
        if name == "gp":
            import jax

            return designers.VizierGPUCBPEBandit(stated, rng=jax.random.PRNGKey(seed))
        if name == "eagle":
            return designers.EagleStrategyDesigner(stated, seed=seed)
        return designers.NSGA2Designer(stated, seed=seed)

    def propose(self, count: int) -> Rows:
        """Suggestions of the designer, replaced with nearby rows where they cannot be tried."""
        opening = self.initial_rows(count) if not len(self.history) else self.history.rows[:0]
        if len(opening) or self._designer is None:
            return opening
        self._tell(self._designer)
        found = self.history.rows[:0]
        for suggestion in self._designer.suggest(count):
            row = np.zeros(len(self.problem.cardinalities), np.int64)
            for i in self._varied:
                row[i] = round(suggestion.parameters.get_value(f"x{i}"))
            row = np.clip(row, 0, self.problem.cardinalities - 1)
            rows = self.repaired(row[None])
            if len(rows):
                self.history.mark_pending(rows)  # so that no other suggestion is replaced with the same row
                found = np.vstack([found, rows])
        self.history.unmark_pending(found)
        return found

    def _tell(self, designer: Designer) -> None:
        """Reports newly finished and running trials to the designer."""
        history = self.history
        completed = []
        for row, values, good in zip(
            history.rows[self._told :], history.objectives[self._told :], history.feasible[self._told :], strict=True
        ):
            trial = self._trial(row)
            measured = self._vizier.Measurement(
                metrics={name: float(value) for name, value in zip(self._metrics, values, strict=True)}
            )
            trial.complete(measured, infeasibility_reason=None if good else "a limit is broken")
            completed.append(trial)
        self._told = len(history)
        active = [self._trial(row) for row in history.pending]
        designer.update(self._algorithms.CompletedTrials(completed), self._algorithms.ActiveTrials(active))

    def _trial(self, row: Rows) -> Trial:
        self._trials += 1
        return self._vizier.Trial(id=self._trials, parameters={f"x{i}": int(row[i]) for i in self._varied})

"""Optuna's samplers as strategies: TPE and the Gaussian process.

The sampler itself treats every objective as a black box and all limits as constraints, as it does without chipwise. The
cost model is used outside the sampler: a suggestion that exceeds a free limit (one that needs no trial), or that was
tried before, is replaced with a nearby row, which is reported to the sampler as running. Results are kept in an Optuna
study in memory.

References:
    Akiba et al., Optuna, KDD 2019. Ozaki et al., Multiobjective Tree-Structured Parzen Estimator, JAIR 2022.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.errors import MissingExtra

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler


class OptunaSampler(BaseStrategy):
    """An Optuna sampler as a strategy.

    Args:
        problem: The search problem.
        seed: Random seed of the sampler.
        initial: Random trials before the sampler's model is used.

    Raises:
        MissingExtra: Optuna, or a package that its sampler needs, is not installed.
    """

    def __init__(self, problem: Problem, *, seed: int, initial: int | None = None) -> None:
        super().__init__(problem, seed=seed)
        try:
            import optuna
        except ImportError:
            raise MissingExtra("optuna", "search") from None
        self._optuna = optuna
        self.initial = 10 if initial is None else initial
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(sampler=self._sampler(seed), directions=["minimize"] * len(problem.goals))
        self._space = {f"x{i}": self._distribution(int(count)) for i, count in enumerate(problem.cardinalities)}
        self._running: dict[bytes, int] = {}

    def _sampler(self, seed: int) -> BaseSampler:
        raise NotImplementedError

    def _distribution(self, count: int) -> BaseDistribution:
        """The sampler's distribution for a variable with ``count`` values: integers."""
        return self._optuna.distributions.IntDistribution(0, count - 1)

    def propose(self, count: int) -> Rows:
        """Asks the sampler for rows, one after another."""
        if len(self.history) < self.initial:
            return self.initial_rows(count)
        found = self.history.rows[:0]
        for _ in range(count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial = self._study.ask(self._space)
            drawn = np.rint([trial.params[name] for name in self._space]).astype(np.int64)
            suggested = np.clip(drawn, 0, self.problem.cardinalities - 1)[None]
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            rows = self.repaired(suggested)
            if not len(rows):
                break
            self.history.mark_pending(rows)  # so that no other suggestion is replaced with the same row
            self._running[np.ascontiguousarray(rows[0]).tobytes()] = self._add(rows[0], "RUNNING")
            found = np.vstack([found, rows])
        self.history.unmark_pending(found)
        return found

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds the trials to the sampler's study; failed trials are removed from it."""
        before = len(self.history)
        self.history.tell(rows, objectives, violations)
        for row in np.ascontiguousarray(self.problem.canonicalise(rows)):
            number = self._running.pop(row.tobytes(), None)
            if number is not None:
                self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        for i in range(before, len(self.history)):
            self._add(
                self.history.rows[i],
                "COMPLETE",
                values=[float(v) for v in self.history.objectives[i]],
                constraints={f"c{j}": float(v) for j, v in enumerate(self.history.violations[i])},
            )

    def _add(self, row: Rows, state: str, **more: object) -> int:
        params = dict(zip(self._space, (int(v) for v in row), strict=True))
        trial = self._optuna.trial.create_trial(
            state=getattr(self._optuna.trial.TrialState, state), params=params, distributions=self._space, **more
        )
        self._study.add_trial(trial)
        return len(self._study.get_trials(deepcopy=False)) - 1


class Tpe(OptunaSampler):
    """Optuna's tree-structured Parzen estimators (TPE), over all variables jointly."""

    def _sampler(self, seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=self.initial
            )


class Gp(OptunaSampler):
    """Optuna's Gaussian process with expected (hypervolume) improvement.

    Choices are modelled as real numbers and rounded, so the sampler can optimise all variables together by gradient.
    With integers it would optimise one variable after another, which takes five to twenty times as long. The range of
    real numbers ends exactly at the first and the last choice.
    """

    def _distribution(self, count: int) -> BaseDistribution:
        return self._optuna.distributions.FloatDistribution(0.0, count - 1.0)

    def _sampler(self, seed: int) -> BaseSampler:
        try:
            import scipy  # noqa: F401
            import torch  # noqa: F401
        except ImportError as error:
            raise MissingExtra(str(error.name), "search") from None
        return self._optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=self.initial, warn_independent_sampling=False
        )

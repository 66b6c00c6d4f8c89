"""The default strategy: for thousands of candidates, computes objectives that need no trial, and learns the others.

The cost model computes the costs of all candidates in a pool. The pool evolves towards the front that the surrogate
predicts, and the batch with the largest expected hypervolume improvement is evaluated.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import normal_cdf
from chipwise.design.strategies.acquisition import adding_most, frame, most_informative
from chipwise.design.strategies.algorithms.base import draw_new, places_in_groups, round_robin
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.history import History
from chipwise.design.strategies.pareto import non_dominated, ranks
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.quality_model import QualityModel, worth_keeping
from chipwise.design.strategies.strategy import Problem, Rows

_SEEDED = 3000  # rows sampled in each of two ways to fill the pool before the first trial
_GENERATIONS, _CHILDREN = 12, 500  # generations before each batch, and children per generation
_PRIOR_GENERATIONS = 20  # generations before the first batch if there is a prior
_KEPT = 2000  # rows kept in the pool
_CONSIDERED = 800  # candidates from which the first trials are chosen
_PARENTS = 120
_ELITES = 12  # best rows kept per stratum, even if far from the front
_AHEAD = 5  # rows planned ahead if fewer are requested; also the number of results after which a plan is renewed
_BOLDNESS = (0.0, 1.0, 2.0)  # optimism in ranking parents: standard deviations subtracted, one value per generation


class Auto:
    """A :class:`~chipwise.design.strategies.strategy.Strategy`: screens by cost, learns quality by a Gaussian process.

    Args:
        problem: The search problem.
        seed: Random seed.
        initial: Trials before the surrogate is used. Default: 8 plus a quarter of the number of variables, at most 30.
    """

    def __init__(self, problem: Problem, *, seed: int, initial: int | None = None) -> None:
        self.problem, self.history = problem, History(problem)
        self.initial = min(8 + len(problem.cardinalities) // 4, 30) if initial is None else initial
        self._seed = seed
        self._rng = np.random.default_rng([seed, 4])
        self._encoder = Encoder(problem, seed=seed)
        self.models = {
            column: QualityModel(problem, seed=seed, prior=first, encoder=self._encoder)
            for column, first in zip(problem.expensive_goals, [True] + [False] * len(problem.goals), strict=False)
        }
        self._limit_models = {
            column: QualityModel(problem, seed=seed, prior=False, encoder=self._encoder)
            for column in problem.expensive_limits
        }
        self._plain = QualityModel(problem, seed=seed, prior=problem.prior is not None, encoder=self._encoder)
        self._pool: Pool | None = None
        self._fitted_to = -1
        self._plan: Rows = self.history.rows  # chosen but not yet returned
        self._planned_at = 0

    def ask(self, count: int) -> Rows:
        """The batch with the largest expected improvement; small requests get part of a batch planned ahead."""
        plan = self._plan[self.history.is_new(self._plan)]
        if len(plan) < count or self.history.trial_count - self._planned_at >= _AHEAD:
            plan = self._plan_batch(max(count, _AHEAD))
            self._planned_at = self.history.trial_count
        chosen, self._plan = plan[:count], plan[count:]
        self.history.mark_pending(chosen)
        return chosen

    def _plan_batch(self, count: int) -> Rows:
        if self._pool is None:
            self._pool = self._seeded()
        chosen = self.history.rows[:0]
        for propose in (self._first, self._next, self._any):
            if len(chosen) < count:
                rows = propose(self._pool, count - len(chosen))
                self.history.mark_pending(rows)
                chosen = np.vstack([chosen, rows])
        self.history.unmark_pending(chosen)
        return chosen

    def _seeded(self) -> Pool:
        pool = Pool(self.problem, self._encoder, self._plain.columns, self._seed)
        resumed = len(self.history) >= self.initial
        pool.seed(_SEEDED // 3 if resumed else _SEEDED)
        if self.problem.prior is not None and not resumed:
            self._breed(pool, generations=_PRIOR_GENERATIONS)
        return pool

    def _any(self, pool: Pool, count: int) -> Rows:
        """Random new rows; used when the pool has no new rows left."""
        return draw_new(self.problem, self.history, count, self._rng)

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds results; the surrogate is refitted at the next ``ask``."""
        self.history.tell(rows, objectives, violations)

    def candidates(self) -> Rows:
        """Rows of the pool, (n, d), after evolving it towards the predicted front."""
        if self._pool is None:
            self._pool = self._seeded()
        self._fit()
        self._breed(self._pool, generations=2 * _GENERATIONS)
        return self._pool.rows

    def predict(self, rows: Rows) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Means and standard deviations of the objectives, to be minimised, (n, m), and expected violations, (n, k)."""
        self._fit()
        excess = np.zeros((len(rows), len(self.problem.limits)))
        costs, excess[:, self.problem.free_limits] = self.problem.price(rows)
        columns = self._plain.columns(rows)
        for column, model in self._limit_models.items():
            excess[:, column] = model.predict_columns(columns)[0]
        return *self._expected(costs, columns), excess

    def _expected(self, costs: Float64Array, columns: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Means and standard deviations of the objectives, (n, m), from known costs and the surrogate's inputs."""
        mean, std = np.zeros((2, len(columns), len(self.problem.goals)))
        mean[:, self.problem.free_goals] = costs
        for column, model in self.models.items():
            mean[:, column], std[:, column] = model.predict_columns(columns)
        return mean, std

    def _available(self, pool: Pool) -> NDArray[np.int64]:
        """Indices of new rows in the pool that meet the limits that need no trial."""
        held = np.flatnonzero(pool.excess <= 0)
        return held[self.history.is_new(pool.rows[held])]

    def _first(self, pool: Pool, count: int) -> Rows:
        """The first batch: rows from the prior's front, then the rows of largest predicted variance from all strata."""
        model, known = self._plain, len(self.history) + len(self.history.pending)
        if len(self.history):
            count = min(count, self.initial - known)
        index = self._available(pool)
        if not len(index) or count <= 0:
            return pool.rows[:0]
        hopeful = self._prior_front(pool, index, count) if self.problem.prior is not None else index[:0]
        index = np.setdiff1d(self._across_strata(pool, index, _CONSIDERED), hopeful, assume_unique=True)
        index = np.r_[hopeful, index]
        out = np.vstack([self.history.rows, self.history.pending])
        cov = model.covariance(np.vstack([model.columns(out), pool.columns[index]]))
        for i in range(len(out) + len(hopeful)):
            _condition(cov, i)
        tried = np.vstack([out, pool.rows[hopeful]])
        chosen = list(range(len(hopeful)))
        while len(chosen) < min(count, len(index)):
            variance = np.diag(cov)[len(out) :] * self._neglected(tried, pool.rows[index])
            variance[chosen] = -1
            best = int(np.argmax(variance))
            chosen.append(best)
            tried = np.vstack([tried, pool.rows[index[best]]])
            _condition(cov, len(out) + best)
        first: Rows = pool.rows[index[chosen]]
        return first

    def _neglected(self, tried: Rows, rows: Rows) -> Float64Array:
        """Factor for each row: large if the variables that define strata have values that were never tried."""
        factor = np.ones(len(rows))
        for column in self._encoder.strata_columns:
            factor *= np.where(np.isin(rows[:, column], tried[:, column]), 1.0, 1e6)
        return factor

    def _across_strata(self, pool: Pool, index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """At most ``count`` of the pool indices ``index``, taken evenly from the strata."""
        index = self._rng.permutation(index)
        even: NDArray[np.int64] = index[round_robin(self._encoder.strata(pool.rows[index]))[:count]]
        return even

    def _prior_front(self, pool: Pool, index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Indices of rows spread over the Pareto front of the prior and the costs that need no trial.

        They are at most two thirds of the ``count`` rows that are needed.
        """
        out = np.vstack([self.history.rows, self.history.pending])
        points = self._by_prior(pool.costs[index], pool.columns[index])
        front = self._by_prior(self.problem.price(out)[0], self._plain.columns(out))
        low, span = frame(points)
        scaled, front = (points - low) / span, (front - low) / span
        most, expensive = math.ceil(2 * count / 3), self.problem.expensive_goals[:1]
        chosen = adding_most(scaled, front, expensive=expensive, doubt=1e-9, count=most)
        return np.asarray(index[chosen])

    def _by_prior(self, costs: Float64Array, columns: Float64Array) -> Float64Array:
        points = np.zeros((len(costs), len(self.problem.goals)))
        points[:, self.problem.free_goals] = costs
        points[:, self.problem.expensive_goals[:1]] = columns[:, -2:-1]
        return points

    def _next(self, pool: Pool, count: int) -> Rows:
        """The batch with the largest expected hypervolume improvement."""
        if not len(self.history):
            return pool.rows[:0]
        self._fit()
        pool.add(self.history.rows[non_dominated(self._ranked_objectives())])
        self._breed(pool, generations=_GENERATIONS)
        index = self._available(pool)
        if not len(index):
            return pool.rows[:0]
        mean, std, chance = self._beliefs(pool, index)
        observed = self.history.objectives[self.history.feasible]
        out = self.history.pending
        if len(out):
            observed = np.vstack([observed, self.predict(out)[0]])
        if not len(observed):
            observed = mean[[int(np.argmax(chance))]]
        picked = most_informative(
            mean,
            std,
            lambda short, j: self.models[j].covariance(pool.columns[index[short]]),
            observed,
            count,
            chance=chance,
            noise=np.array([self.models[j].noise_variance if j in self.models else 0.0 for j in range(mean.shape[1])]),
        )
        return pool.rows[index[picked]]

    def _ranked_objectives(self) -> Float64Array:
        """Objectives of the trials; those of infeasible trials are increased so that these rank last."""
        points = self.history.objectives
        return np.where(self.history.feasible[:, None], points, points + 10 * np.abs(points).max(axis=0) + 1)

    def _fit(self) -> None:
        if self._fitted_to == self.history.trial_count:
            return
        self._fitted_to = self.history.trial_count
        history = self.history
        excess = np.maximum(history.violations, 0).sum(axis=1)
        rank = ranks(history.objectives, excess, most=4)
        index = worth_keeping(rank, np.random.default_rng([self._seed, 5]))
        for column, model in self.models.items():
            model.fit(history.rows[index], history.objectives[index, column])
        for column, model in self._limit_models.items():
            model.fit(history.rows[index], history.violations[index, column])

    def _beliefs(self, pool: Pool, index: NDArray[np.int64]) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Means and standard deviations of the objectives, (n, m), and probabilities of meeting expensive limits."""
        columns, chance = pool.columns[index], np.ones(len(index))
        mean, std = self._expected(pool.costs[index], columns)
        for model in self._limit_models.values():
            excess, doubt = model.predict_columns(columns)
            chance *= normal_cdf(-excess / doubt)
        return mean, std, chance

    def _breed(self, pool: Pool, *, generations: int) -> None:
        """Evolves the pool towards the predicted front, then removes the worst rows if it is too large."""
        index = np.arange(len(pool))
        mean, std, chance = self._beliefs(pool, index)
        for generation in range(generations):
            hope = mean - _BOLDNESS[generation % len(_BOLDNESS)] * std
            parents = self._parents(pool, hope, chance)
            born = pool.breed(parents, _CHILDREN)
            more = self._beliefs(pool, born)
            mean, std, chance = np.vstack([mean, more[0]]), np.vstack([std, more[1]]), np.r_[chance, more[2]]
        if len(pool) > _KEPT:
            excess = pool.excess + np.maximum(0.5 - chance, 0)
            order = np.lexsort((self._rng.random(len(pool)), ranks(mean - std, excess, most=12)))
            pool.keep(np.unique(np.r_[order[: _KEPT // 2], self._elites(pool, mean, excess)]))

    def _parents(self, pool: Pool, hope: Float64Array, chance: Float64Array) -> NDArray[np.int64]:
        excess = pool.excess + np.maximum(0.5 - chance, 0)
        rank = ranks(hope, excess, most=4) if hope.shape[1] > 1 else np.lexsort((hope[:, 0], excess)).argsort()
        best = np.lexsort((self._rng.random(len(pool)), rank))[:_PARENTS]
        elites = self._elites(pool, hope, excess)
        chosen = np.unique(np.r_[best, self._rng.choice(elites, min(len(elites), _PARENTS // 2), replace=False)])
        return chosen[np.lexsort((hope[chosen, -1], self._encoder.strata(pool.rows[chosen])))]

    def _elites(self, pool: Pool, points: Float64Array, excess: Float64Array) -> NDArray[np.int64]:
        """Indices of each stratum's best rows by the first expensive objective, or by violation if none is feasible."""
        first = (self.problem.expensive_goals or [0])[0]
        strata = self._encoder.strata(pool.rows)
        order = np.lexsort((points[:, first], excess, strata))
        return order[places_in_groups(strata[order]) < _ELITES]


def _condition(cov: Float64Array, i: int) -> None:
    """Conditions a covariance matrix, in place, on an observation at index ``i``."""
    cov -= np.outer(cov[:, i], cov[i]) / (cov[i, i] + 1e-6)

"""The default strategy: computes cheap objectives for thousands of candidates, and learns expensive ones.

A pool of candidates is priced by the cost model and evolved towards the front predicted by the surrogate; the batch
with the largest expected hypervolume improvement is evaluated.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import normal_cdf
from chipwise.design.strategies.acquisition import adding_most, frame, most_informative
from chipwise.design.strategies.algorithms.random_search import draw_new
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.history import History
from chipwise.design.strategies.pareto import non_dominated, ranks
from chipwise.design.strategies.pool import Pool
from chipwise.design.strategies.quality_model import QualityModel, worth_keeping
from chipwise.design.strategies.strategy import Problem, Rows

_SEEDED = 3000  # rows sampled in each of two ways before the first trial
_GENERATIONS, _CHILDREN = 12, 500  # before each batch
_PRIOR_GENERATIONS = 20  # generations before the first batch, if there is a prior
_KEPT = 2000  # rows kept in the pool
_CONSIDERED = 800  # candidates considered for the first trials
_PARENTS = 120
_ELITES = 12  # rows kept per stratum, even if far from the front
_AHEAD = 5  # rows planned ahead if fewer are requested; results after which the plan is renewed
_BOLDNESS = (0.0, 1.0, 2.0)  # standard deviations subtracted (optimism) when ranking parents, in turn


class Auto:
    """Screens by cost, models quality by a Gaussian process. A :class:`~chipwise.design.strategies.strategy.Strategy`.

    Args:
        problem: The search problem.
        seed: Random seed.
        initial: Trials before the surrogate is used. Default: slightly more than a quarter of the number of variables.
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
        """The batch with the largest expected improvement; single rows are taken from a batch planned ahead."""
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
        """Random rows, if the pool has none left."""
        return draw_new(self.problem, self.history, count, self._rng)

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds results; the surrogate is refitted at the next ``ask``."""
        self.history.tell(rows, objectives, violations)

    def candidates(self) -> Rows:
        """Rows of the pool after evolving it towards the predicted front, (n, d)."""
        if self._pool is None:
            self._pool = self._seeded()
        self._fit()
        self._breed(self._pool, generations=2 * _GENERATIONS)
        return self._pool.rows

    def predict(self, rows: Rows) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Mean and standard deviation of the objectives, minimised, (n, m), and the expected violations, (n, k)."""
        self._fit()
        mean, std = np.zeros((2, len(rows), len(self.problem.goals)))
        excess = np.zeros((len(rows), len(self.problem.limits)))
        mean[:, self.problem.free_goals], excess[:, self.problem.free_limits] = self.problem.price(rows)
        columns = self._plain.columns(rows)
        for column, model in self.models.items():
            mean[:, column], std[:, column] = model.predict_columns(columns)
        for column, model in self._limit_models.items():
            excess[:, column] = model.predict_columns(columns)[0]
        return mean, std, excess

    def _available(self, pool: Pool) -> NDArray[np.int64]:
        """New rows of the pool that keep the free limits."""
        held = np.flatnonzero(pool.excess <= 0)
        return held[self.history.is_new(pool.rows[held])]

    def _first(self, pool: Pool, count: int) -> Rows:
        """The first batch: the front of the prior, every stratum, and the rows farthest from both."""
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
        """Factor that prefers values of the decisive variables that were never tried."""
        factor = np.ones(len(rows))
        for column in self._encoder.strata_columns:
            factor *= np.where(np.isin(rows[:, column], tried[:, column]), 1.0, 1e6)
        return factor

    def _across_strata(self, pool: Pool, index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """At most ``count`` of the rows ``index``, distributed evenly over the strata."""
        index = self._rng.permutation(index)
        strata = self._encoder.strata(pool.rows[index])
        order = np.argsort(strata, kind="stable")
        begins = np.r_[True, np.diff(strata[order]) > 0]
        since = np.arange(len(order)) - np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        even: NDArray[np.int64] = index[order[np.argsort(since, kind="stable")[:count]]]
        return even

    def _prior_front(self, pool: Pool, index: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Rows spread over the front of the prior and the free costs, for two thirds of the first trials."""
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
            observed = np.vstack([observed, self._predicted(out)])
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
        """Objectives of the trials; infeasible trials rank last."""
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

    def _predicted(self, rows: Rows) -> Float64Array:
        points = np.zeros((len(rows), len(self.problem.goals)))
        points[:, self.problem.free_goals] = self.problem.price(rows)[0]
        for column, model in self.models.items():
            points[:, column] = model.predict(rows)[0]
        return points

    def _beliefs(self, pool: Pool, index: NDArray[np.int64]) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Mean and standard deviation of the objectives, (n, m), and the probability of keeping expensive limits."""
        mean = np.zeros((len(index), len(self.problem.goals)))
        std, chance = np.zeros_like(mean), np.ones(len(index))
        mean[:, self.problem.free_goals] = pool.costs[index]
        columns = pool.columns[index]
        for column, model in self.models.items():
            mean[:, column], std[:, column] = model.predict_columns(columns)
        for model in self._limit_models.values():
            excess, doubt = model.predict_columns(columns)
            chance *= normal_cdf(-excess / doubt)
        return mean, std, chance

    def _breed(self, pool: Pool, *, generations: int) -> None:
        """Evolves the pool towards the predicted front, and trims it."""
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
        """The best rows of every stratum by the first expensive objective; by violation if no row is feasible."""
        first = (self.problem.expensive_goals or [0])[0]
        strata = self._encoder.strata(pool.rows)
        order = np.lexsort((points[:, first], excess, strata))
        begins = np.r_[True, np.diff(strata[order]) > 0]
        since = np.arange(len(order)) - np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
        return order[since < _ELITES]


def _condition(cov: Float64Array, i: int) -> None:
    """Conditions a covariance matrix on the value at index ``i``."""
    cov -= np.outer(cov[:, i], cov[i]) / (cov[i, i] + 1e-6)

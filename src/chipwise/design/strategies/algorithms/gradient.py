"""Gradient search: Adam minimises expected costs and losses over choice probabilities.

An additive table over choices is fitted once to the free costs (those that need no trial); a table of the same kind is
fitted to the expensive objectives of the trials so far (and to the prior, if there is one). Many descents, each with
a different trade-off between the objectives, use Gumbel-softmax samples with falling temperature. At the end of each
descent, designs are sampled from the choice probabilities, and the cost model computes their free costs exactly. The
batch that improves the front most is evaluated.

References:
    Jang, Gu and Poole, Categorical Reparameterization with Gumbel-Softmax, ICLR 2017; Wu et al., FBNet, CVPR 2019 (the
    differentiable cost of a table).
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.acquisition import adding_most, frame, lattice
from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.algorithms.choice_table import ChoiceTable, gumbel
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.pareto import non_dominated
from chipwise.design.strategies.strategy import Problem, Rows

_PRICED = 3000  # number of rows whose free costs are fitted by the table
_LEANING = 4.0  # initial logit of the values of the stratum in which a descent starts
_WALKS, _STEPS, _RATE = 48, 100, 0.15
_HOT, _COLD = 2.0, 0.3  # first and last temperature
_SAMPLES = 6  # discrete rows sampled at the end of every descent, besides the most likely one
_PENALTY = 4.0  # weight of the expected violation, in spans of the objectives
_SHARPNESS = 20.0  # sharpness of the soft maximum over weighted objectives


class Gradient(BaseStrategy):
    """Gradient search with Gumbel-softmax over choices and differentiable costs.

    Args:
        problem: The search problem.
        seed: Random seed.
        initial: Number of random trials before the first gradient descent.
    """

    def __init__(self, problem: Problem, *, seed: int, initial: int | None = None) -> None:
        super().__init__(problem, seed=seed)
        self.initial = min(10 + len(problem.cardinalities) // 2, 40) if initial is None else initial
        self._encoder = Encoder(problem, seed=seed)
        self._table = ChoiceTable(problem, self._encoder.strata_columns)
        rows = problem.draw(_PRICED, self.rng)
        prior = np.zeros(len(rows)) if problem.prior is None else problem.prior_values(rows)
        self._prior_scale = float(prior.std()) or 1.0
        self._prior_centre = float(prior.mean())
        costs, violations = problem.price(rows)
        prior = (prior - self._prior_centre) / self._prior_scale
        self._free = self._table.fit(rows, np.column_stack([costs, violations, prior]))

    def propose(self, count: int) -> Rows:
        """Rows sampled where gradient descents end, chosen to improve the front most.

        While fewer than ``initial`` trials have ended, or fewer than two have succeeded, the :meth:`initial_rows` are
        proposed instead.
        """
        if len(self.history) < 2 or self.history.trial_count < self.initial:
            return self.initial_rows(count)
        goals, limits = self._weights()
        known = self.history.objectives
        low, span = frame(known)
        ends = self._walk(goals, limits, low, span)
        noise = gumbel(self.rng, (_SAMPLES, *ends.shape))
        scores = np.vstack([ends, (ends[None] + noise).reshape(-1, ends.shape[1])])
        rows = self.usable(self._table.rows(scores))
        if len(rows) < count:
            rows = np.vstack([rows, *(self.repaired(row) for row in self._table.rows(ends)[:count])])
            rows = self.usable(rows)
        return self._spread(rows, goals, known[self.history.feasible], low, span, count)

    def _weights(self) -> tuple[Float64Array, Float64Array]:
        """Table weights of all goals, (features, m), and of all limits, (features, k)."""
        problem, history = self.problem, self.history
        free_m, free_k = len(problem.free_goals), len(problem.free_limits)
        goals = np.zeros((len(self._free), len(problem.goals)))
        limits = np.zeros((len(self._free), len(problem.limits)))
        goals[:, problem.free_goals] = self._free[:, :free_m]
        limits[:, problem.free_limits] = self._free[:, free_m : free_m + free_k]
        for i, column in enumerate(problem.expensive_goals):
            goals[:, column] = self._learnt(history.objectives[:, column], prior=i == 0)
        for column in problem.expensive_limits:
            limits[:, column] = self._learnt(history.violations[:, column], prior=False)
        return goals, limits

    def _learnt(self, values: Float64Array, *, prior: bool) -> Float64Array:
        """Table weights of an expensive quantity: the prior, scaled by its agreement with trials, plus a correction."""
        rows = self.history.rows
        slope = 0.0
        if prior and self.problem.prior is not None:
            guess = (self.problem.prior_values(rows) - self._prior_centre) / self._prior_scale
            apart = guess - guess.mean()
            slope = max(0.0, float(apart @ values) / max(float(apart @ apart), 1e-12))
            values = values - slope * guess
        return np.asarray(self._table.fit(rows, values[:, None])[:, 0] + slope * self._free[:, -1])

    def _walk(self, goals: Float64Array, limits: Float64Array, low: Float64Array, span: Float64Array) -> Float64Array:
        """Logits at the end of every descent, (descents, D)."""
        m = goals.shape[1]
        weights = -np.log(np.clip(lattice(_WALKS, m), 1e-3, 1 - 1e-3))
        weights = 0.02 + weights / weights.sum(axis=1, keepdims=True)
        logits = 0.5 * self.rng.standard_normal((_WALKS, self._table.width))
        for column in self._encoder.strata_columns:  # descents start in all strata
            drawn = self.rng.integers(0, self.problem.cardinalities[column], _WALKS)
            logits[np.arange(_WALKS), self._table.start[column] + drawn] += _LEANING
        first, second = np.zeros_like(logits), np.zeros_like(logits)
        for step in range(_STEPS):
            heat = _HOT * (_COLD / _HOT) ** (step / (_STEPS - 1))
            noise = gumbel(self.rng, logits.shape)
            chance = self._table.probabilities((logits + noise) / heat)
            value, slope = self._table.expected(goals, chance)
            scaled = weights * (value - low) / span
            pull = np.exp(_SHARPNESS * (scaled - scaled.max(axis=1, keepdims=True)))
            pull /= pull.sum(axis=1, keepdims=True)
            total = np.einsum("nm,nmd->nd", pull * weights / span, slope)
            if limits.shape[1]:
                excess, steep = self._table.expected(limits, chance)
                total += _PENALTY * np.einsum("nk,nkd->nd", (excess > 0).astype(float), steep)
            total = self._table.through_softmax(total, chance) / heat
            first, second = 0.9 * first + 0.1 * total, 0.99 * second + 0.01 * total * total
            rise, rise2 = 1 - 0.9 ** (step + 1), 1 - 0.99 ** (step + 1)
            logits -= _RATE * (first / rise) / (np.sqrt(second / rise2) + 1e-9)
        return logits

    def _spread(
        self, rows: Rows, goals: Float64Array, known: Float64Array, low: Float64Array, span: Float64Array, count: int
    ) -> Rows:
        """Chooses the ``count`` rows whose expected objectives together improve the front most."""
        if not len(rows):
            return rows
        points = self._table.expected(goals, self._table.one_hot(rows))[0]
        points[:, self.problem.free_goals] = self.problem.price(rows)[0]
        scaled, front = (points - low) / span, (known - low) / span
        first = (self.problem.expensive_goals or [0])[:1]
        chosen = adding_most(scaled, front[non_dominated(front)], expensive=first, doubt=0.02, count=count)
        return rows[chosen]

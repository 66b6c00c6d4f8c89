"""Policy gradient: policies, one per trade-off, sample all variables independently and are rewarded by trials.

Every trial updates every policy with an importance weight: the row's probability under this policy, divided by its
probability under the mixture of all policies. Rows that exceed a free limit (one that needs no trial) are not tried. As
long as most of a policy's samples exceed free limits, the policy is also updated without trials: the lower the excess
of a sample, the higher its reward.

References:
    Williams, REINFORCE, 1992; Zoph and Le, Neural Architecture Search with Reinforcement Learning, ICLR 2017. The
    importance weights are clipped, as is usual in off-policy learning; rewards are ranks, so no scale is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.acquisition import frame, lattice
from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.algorithms.choice_table import ChoiceTable, gumbel
from chipwise.design.strategies.strategy import Problem, Rows

_POLICIES = 10  # number of policies (trade-offs) if there are several objectives
_RATE, _FREE_RATE = 0.35, 0.05
_CLIP = 2.0
_DRAWN, _ROUNDS = 48, 12
_OPENING = 20  # trials taken from all strata before the policies are used, if any limits need no trial
_FORGET = 0.995  # decay of the logits per update, so that no choice is ruled out for good


class Reinforce(BaseStrategy):
    """REINFORCE with ranks as rewards.

    Args:
        problem: The search problem.
        seed: Random seed.
        rate: Learning rate of a policy's logits.
    """

    def __init__(self, problem: Problem, *, seed: int, rate: float = _RATE) -> None:
        super().__init__(problem, seed=seed)
        self._rate, self._table = rate, ChoiceTable(problem, [])
        m = len(problem.goals)
        shares = -np.log(np.clip(lattice(_POLICIES if m > 1 else 1, m), 1e-3, 1 - 1e-3))
        self._weights = 0.02 + shares / shares.sum(axis=1, keepdims=True)
        self._logits = np.zeros((len(self._weights), self._table.width))
        self._turn = 0

    def propose(self, count: int) -> Rows:
        """Samples rows from the policies in turn."""
        if self.history.trial_count + len(self.history.pending) < _OPENING and self.problem.free_limits:
            return self.initial_rows(count)
        found = self.history.rows[:0]
        for _ in range(count):
            policy = self._turn % len(self._logits)
            self._turn += 1
            for _ in range(_ROUNDS):
                drawn = self._draw(policy)
                excess = self.violation(drawn)
                usable = self.usable(drawn[excess <= 0])
                usable = usable[~(usable[:, None] == found[None]).all(axis=2).any(axis=1)]
                if (excess > 0).mean() > 0.5:  # updates the policy without trials until most samples meet the limits
                    self._learn(policy, drawn, _FREE_RATE * (excess.mean() - excess) / (excess.std() + 1e-9))
                if len(usable):
                    found = np.vstack([found, usable[:1]])
                    break
        return found

    def tell(self, rows: Rows, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Updates every policy with the rewards of the trials."""
        before = len(self.history)
        self.history.tell(rows, objectives, violations)
        if len(self.history) == before:
            return
        points = self.history.objectives
        low, span = frame(points)
        excess = np.maximum(self.history.violations, 0).sum(axis=1)
        new = self.history.rows[before:]
        logs = np.log(np.maximum(self._table.probabilities(self._logits), 1e-12))
        likely = self._table.one_hot(new) @ logs.T  # (new, policies)
        share = np.exp(likely - np.logaddexp.reduce(likely, axis=1, keepdims=True)) * len(logs)
        for policy, weights in enumerate(self._weights):
            scaled = weights * (points - low) / span
            loss = scaled.max(axis=1) + 0.1 * scaled.sum(axis=1)
            loss = np.where(excess > 0, loss.max() + excess, loss)
            rank = (loss[before:, None] > loss[None]).mean(axis=1)  # share of all trials that are better
            self._learn(policy, new, self._rate * np.minimum(share[:, policy], _CLIP) * (0.5 - rank) * 2)
            self._logits[policy] *= _FORGET ** len(new)

    def _draw(self, policy: int) -> Rows:
        return self._table.rows(self._logits[policy] + gumbel(self.rng, (_DRAWN, self._table.width)))

    def _learn(self, policy: int, rows: Rows, advantage: Float64Array) -> None:
        """One gradient step on the log likelihood of ``rows``, each weighted by its advantage, (n,)."""
        chance = self._table.probabilities(self._logits[policy : policy + 1])
        self._logits[policy] += advantage @ (self._table.one_hot(rows) - chance)

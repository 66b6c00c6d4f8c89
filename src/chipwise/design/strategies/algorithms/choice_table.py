"""Additive tables of the effects of choices, fitted to rows with known costs and differentiable in probabilities.

A table holds the effect of every value of every variable, and how this effect changes with each value of a few decisive
variables (a layer costs more in a wide model). If choices are independent, a table's expectation is bilinear in their
probabilities, so both the expectation and its gradient are exact sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.strategy import Problem, Rows

_RIDGE = 1e-3


class ChoiceTable:
    """A linear model of one-hot features of rows, and of their products with the decisive variables' features.

    Args:
        problem: The search problem.
        decisive: Columns of the few variables on which the effects of the other variables depend.

    Attributes:
        width: Total number of values of all variables, D.
        owner: Index of the variable that each value belongs to, (D,).
    """

    def __init__(self, problem: Problem, decisive: list[int]) -> None:
        cardinalities = problem.cardinalities
        self.problem = problem
        self.owner: NDArray[np.int64] = np.repeat(np.arange(len(cardinalities)), cardinalities)
        self.start = np.r_[0, np.cumsum(cardinalities)[:-1]]
        self.width = int(cardinalities.sum())
        self._beside = np.flatnonzero(np.isin(self.owner, decisive))

    def one_hot(self, rows: Rows) -> Float64Array:
        """Converts rows to one-hot probabilities, (n, D)."""
        found = np.zeros((len(rows), self.width))
        found[np.arange(len(rows))[:, None], self.start + rows] = 1.0
        return found

    def rows(self, scores: Float64Array) -> Rows:
        """Converts scores (n, D) to rows (n, d) with the value of highest score for every variable."""
        ends = np.r_[self.start[1:], self.width]
        found = [scores[:, a:b].argmax(axis=1) for a, b in zip(self.start, ends, strict=True)]
        return self.problem.canonicalise(np.stack(found, axis=1))

    def probabilities(self, logits: Float64Array) -> Float64Array:
        """Softmax of logits (n, D) over the values of each variable."""
        peak = np.maximum.reduceat(logits, self.start, axis=1)[:, self.owner]
        raised = np.exp(logits - peak)
        return np.asarray(raised / np.add.reduceat(raised, self.start, axis=1)[:, self.owner])

    def through_softmax(self, slope: Float64Array, chance: Float64Array) -> Float64Array:
        """Turns a gradient with respect to probabilities into one with respect to logits, (n, D)."""
        inner = np.add.reduceat(slope * chance, self.start, axis=1)[:, self.owner]
        return np.asarray(chance * (slope - inner))

    def features(self, chance: Float64Array) -> Float64Array:
        """Features of choice probabilities: a constant, values, and products with decisive values, (n, 1 + D + D·e)."""
        beside = (chance[:, self._beside, None] * chance[:, None, :]).reshape(len(chance), -1)
        return np.hstack([np.ones((len(chance), 1)), chance, beside])

    def fit(self, rows: Rows, values: Float64Array) -> Float64Array:
        """Weights (features, m) of a ridge regression of ``values`` (n, m) on the :meth:`features` of ``rows``."""
        X = self.features(self.one_hot(rows))
        centre = values.mean(axis=0)
        if len(X) < X.shape[1]:
            inner = np.linalg.solve(X @ X.T + _RIDGE * len(X) * np.eye(len(X)), values - centre)
            weights = X.T @ inner
        else:
            weights = np.linalg.solve(X.T @ X + _RIDGE * np.eye(X.shape[1]), X.T @ (values - centre))
        weights[0] += centre
        return np.asarray(weights)

    def expected(self, weights: Float64Array, chance: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Expected values under choice probabilities, (n, m), and gradients with respect to these, (n, m, D)."""
        e, m = len(self._beside), weights.shape[1]
        plain = weights[1 : 1 + self.width].T  # (m, D)
        pairs = weights[1 + self.width :].reshape(e, self.width, m)
        scaled = np.tensordot(chance[:, self._beside], pairs, axes=1)  # (n, D, m)
        slope = plain[None] + scaled.transpose(0, 2, 1)
        value = weights[0] + np.einsum("nmd,nd->nm", slope, chance)
        slope[:, :, self._beside] += np.einsum("nd,edm->nme", chance, pairs)
        return value, slope


def gumbel(rng: np.random.Generator, shape: tuple[int, ...]) -> Float64Array:
    """Gumbel noise: the argmax of logits plus this noise is a sample from their softmax.

    References:
        Gumbel 1954, Statistical Theory of Extreme Values and Some Practical Applications.
    """
    return np.asarray(-np.log(-np.log(rng.random(shape))))

"""What shared weights say of candidates, as a belief about any candidate that real trainings correct.

The quality of a candidate is what the scaling law says, times what shared weights add to it, as far as they deserve
trust, times what is left for the quality model. Trust begins at a stated value and follows the run's own trainings.

References:
    A dear quantity as a scaled cheap one and a difference: Kennedy & O'Hagan 2000, Biometrika 87:1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.optim.encoding import Encoder
from chipwise.optim.quality_model import QualityModel
from chipwise.optim.strategy import Problem
from chipwise.space.search_space import Rows

TRUST = 0.5  # of the word before any training says how much it is worth
WEIGHT = 2.0  # trainings that this trust counts for
_NOTHING = 1e-12  # variance of a word that tells no candidate from another


class Word:
    """The word of shared weights on any row, in logarithms of bits per byte over the law's, less its mean.

    Args:
        problem: The search.
        encoder: Of its rows.
        rows: Those that were scored, (n, d).
        residuals: log(score / law) of each, (n,).
        seed: Of the model that reads other rows.
    """

    def __init__(self, problem: Problem, encoder: Encoder, rows: Rows, residuals: ArrayLike, *, seed: int) -> None:
        values = np.asarray(residuals, float)
        self._centre, self._spread = float(values.mean()), float(values.var())
        self._model = QualityModel(problem, seed=seed, encoder=encoder).fit(rows, values)

    def __call__(self, rows: Rows) -> Float64Array:
        """Above 0 where the weights say that the law is too hopeful, (n,)."""
        return np.asarray(self._model.predict(rows)[0] - self._centre)

    def trust(self, rows: Rows, residuals: ArrayLike) -> float:
        """How much of the word shows in trainings of ``rows``: the slope of ``residuals`` on it, at least 0.

        It leans on ``TRUST`` as if ``WEIGHT`` trainings of the scores' own spread had shown that.
        """
        if self._spread < _NOTHING:
            return 0.0
        if not len(rows):
            return TRUST
        x, y = self(rows), np.asarray(residuals, float)
        x, y = x - x.mean(), y - y.mean()
        belief = WEIGHT * self._spread
        return max(0.0, float((x @ y + belief * TRUST) / (x @ x + belief)))

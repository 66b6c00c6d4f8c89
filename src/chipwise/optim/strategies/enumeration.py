"""All rows of a space small enough to list."""

from __future__ import annotations

import numpy as np

from chipwise.optim.strategy import Rows


def every_row(cardinalities: Rows) -> Rows:
    """All rows, (product of cardinalities, d), the last variable changing fastest.

    >>> every_row(np.array([2, 2])).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.indices(tuple(int(c) for c in cardinalities)).reshape(len(cardinalities), -1).T.astype(np.int64)

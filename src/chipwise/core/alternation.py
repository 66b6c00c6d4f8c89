"""Times two functions in alternation, so that the machine's drift affects both alike."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from chipwise.core.arrays import Float64Array

SETTLED = 3  # untimed passes of each before timing
Pass = Callable[[int], object]  # one pass, given its number


def alternating_s(
    first: Pass, second: Pass, *, clock: Callable[[], float], fewest: int, most: int, seconds: float = 0.0
) -> tuple[Float64Array, Float64Array]:
    """Seconds of each pass of two functions, each (n,); each pair starts with the other one.

    Args:
        first: Runs one pass.
        second: Runs one pass.
        clock: Returns seconds.
        fewest: Least number of pairs.
        most: Largest number of pairs.
        seconds: Seconds after which no further pair begins.
    """
    both = (first, second)
    for _ in range(SETTLED):
        for run in both:
            run(0)
    found: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    for i in range(most):
        if i >= fewest and time.perf_counter() > until:
            break
        for which in (i % 2, 1 - i % 2):
            begun = clock()
            both[which](i)
            found[which].append(clock() - begun)
    return np.array(found[0]), np.array(found[1])

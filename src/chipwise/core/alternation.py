"""Times two functions in alternation, so that changes in the machine's speed affect both equally."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from chipwise.core.arrays import Float64Array

SETTLED = 3  # untimed passes of each function before timing
Pass = Callable[[int], object]  # runs one pass; its argument is the number of the pass


def alternating_s(
    first: Pass, second: Pass, *, clock: Callable[[], float], fewest: int, most: int, seconds: float = 0.0
) -> tuple[Float64Array, Float64Array]:
    """Runs two functions in pairs, and returns the seconds of each run: one array (n,) per function.

    The functions take turns: each of them runs first in every second pair.

    Args:
        first: One of the functions.
        second: The other function.
        clock: Returns the time in seconds.
        fewest: Smallest number of pairs.
        most: Largest number of pairs.
        seconds: Time after which no further pair begins, once there are ``fewest`` pairs.
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

"""How long calls take in one turn of an agent's loop: one after another, several at once, and again where one fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.predict.load.policy import Speculation

TURNS = 20_000  # drawn turns; the P99 of an exponential time is then known to about 2 %
MOST_TRIES = 500.0  # expected tries in one turn
Draw = Callable[[np.random.Generator, int], Float64Array]  # that many independent times in seconds


def drawn_turns(draws: Sequence[Draw], *, calls: int, parallel: int, retry: float, seed: int) -> Float64Array:
    """Seconds of all calls in each of ``TURNS`` turns.

    Calls run in rounds of ``parallel``, and a round takes as long as its slowest call. With probability ``retry`` a try
    fails and the call is tried again, so the number of its tries is geometric. Times of tries are independent.

    Args:
        draws: Draw the times whose sum is the time of a try.
        calls: Calls in a turn.
        parallel: Calls in a round.
        retry: Probability that a try fails, below 1.
        seed: Random seed.
    """
    random = np.random.default_rng(seed)
    tries = random.geometric(1.0 - retry, size=TURNS * calls)
    each = sum(draw(random, int(tries.sum())) for draw in draws)
    seconds = np.add.reduceat(each, np.cumsum(tries) - tries)
    rounds = math.ceil(calls / parallel)
    padded = np.zeros((TURNS, rounds * parallel))
    padded[:, :calls] = seconds.reshape(TURNS, calls)
    turns: Float64Array = padded.reshape(TURNS, rounds, parallel).max(axis=2).sum(axis=1)
    return turns


def in_steps(step: Draw, drafts: Speculation, tokens: int) -> Draw:
    """The time in which speculative steps give ``tokens``: a step's time by their number, which is drawn, too."""

    def draw(random: np.random.Generator, count: int) -> Float64Array:
        seed = int(random.integers(2**32))
        return step(random, count) * drafts.steps(np.full(count, tokens), seed=seed)

    return draw


def log_normal(p50_s: float, p99_s: float) -> Draw:
    """The log-normal time with this median and P99: always above zero, with a long upper tail."""
    sigma = math.log(p99_s / p50_s) / NormalDist().inv_cdf(0.99)
    return lambda random, count: random.lognormal(math.log(p50_s), sigma, count)

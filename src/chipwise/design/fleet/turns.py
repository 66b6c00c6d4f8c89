"""Samples how long the calls in one turn of an agent's loop take, with parallel calls and retries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.predict.load.policy import Speculation

TURNS = 20_000  # random turns; with so many, the P99 of an exponential time is known to about 2 %
MOST_TRIES = 500.0  # largest expected number of attempts in one turn
Draw = Callable[[np.random.Generator, int], Float64Array]  # samples a number of independent times in seconds


def drawn_turns(draws: Sequence[Draw], *, calls: int, parallel: int, retry: float, seed: int) -> Float64Array:
    """Samples the seconds that all calls of a part take together, for ``TURNS`` turns.

    Calls run in rounds of ``parallel`` calls, and a round takes as long as its slowest call. Each attempt at a call
    fails with probability ``retry``, and a failed call is repeated. The number of attempts per call therefore has a
    geometric distribution. The times of attempts are independent.

    Args:
        draws: Functions that sample times. The time of an attempt is the sum of one sample from each function.
        calls: Calls per turn.
        parallel: Calls per round.
        retry: Probability that an attempt fails, below 1.
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
    """Returns a function that samples the time to decode ``tokens`` tokens in a random number of speculative steps."""

    def draw(random: np.random.Generator, count: int) -> Float64Array:
        seed = int(random.integers(2**32))
        return step(random, count) * drafts.steps(np.full(count, tokens), seed=seed)

    return draw


def log_normal(p50_s: float, p99_s: float) -> Draw:
    """Returns a function that samples log-normal times with this median and P99."""
    sigma = math.log(p99_s / p50_s) / NormalDist().inv_cdf(0.99)
    return lambda random, count: random.lognormal(math.log(p50_s), sigma, count)

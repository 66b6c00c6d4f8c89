"""Reference work: fixed work timed between requests, to distinguish a slow machine from a slow model."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from chipwise.core.statistics import own_speed
from chipwise.deploy.runtimes import Elsewhere, Session, clock_of

EVERY_S, EVERY_REQUESTS = 0.05, 100
SHORTEST_S = 0.015
REFERENCE_PROMPT, REFERENCE_STEPS = 16, 4


class ReferenceWork:
    """Times three kinds of work: arithmetic on data in the caches, the sum of a large array, and a small model.

    The small model, which runs in the same runtime as the measured one, is optional.

    Args:
        reference: A session of the reference model, with room for ``REFERENCE_PROMPT + REFERENCE_STEPS`` positions.
    """

    def __init__(self, reference: Session | None = None) -> None:
        generator = np.random.default_rng(0)
        self._small = generator.standard_normal((48, 48)).astype(np.float32)
        self._large = np.ones(1_000_000, np.float32)  # exceeds private caches
        self._reference = reference
        vocab_size = reference.vocab_size if reference is not None else 2
        self._prompt = generator.integers(0, vocab_size, (1, REFERENCE_PROMPT))
        self._token = self._prompt[:, :1].copy()
        self._last, self._requests = 0.0, 0
        self.seconds = defaultdict[str, list[float]](list)

    def run_if_due(self) -> None:
        """Times all reference work if it is due, after an untimed run that replaces the model's data in the caches.

        Reference work is due 50 ms after it was last timed, or after 15 ms if a hundred requests have run since then.
        It is not due more often, because it fills the caches, which slows down the next request. These intervals are
        short enough for machines whose speed changes within tenths of a second.
        """
        self._requests += 1
        since = time.perf_counter() - self._last
        if since < (SHORTEST_S if self._requests >= EVERY_REQUESTS else EVERY_S):
            return
        self._requests = 0
        self._pure()
        timed = self._pure()
        if self._reference is not None:
            self._run_reference(self._reference)
            timed |= self._run_reference(self._reference)
        self._last = time.perf_counter()
        for name, seconds in timed.items():
            self.seconds[name].append(seconds)

    def _pure(self) -> dict[str, float]:
        clock = time.perf_counter
        start = clock()
        for _ in range(64):
            np.exp(self._small)
        middle = clock()
        self._large.sum()
        return {"compute_s": middle - start, "memory_s": clock() - middle}

    def _run_reference(self, reference: Session) -> dict[str, float]:
        if isinstance(reference, Elsewhere):
            found = reference.timed(self._prompt, REFERENCE_STEPS)
            step_s = sum(found.step_s) / len(found.step_s)
            return {"reference_prefill_s": sum(found.prefill_s), "reference_decode_s": step_s}
        clock = clock_of(reference)
        start = clock()
        reference.prefill(self._prompt)
        middle = clock()
        for _ in range(REFERENCE_STEPS):
            reference.decode(self._token)
        return {"reference_prefill_s": middle - start, "reference_decode_s": (clock() - middle) / REFERENCE_STEPS}


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Median seconds of each kind of reference work."""
    return {name: float(np.median(values)) for name, values in seconds.items() if values}


def own_speeds(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Seconds of each kind of reference work on the undisturbed machine; see ``core/statistics.py``."""
    return {name: own_speed(values) for name, values in seconds.items() if values}

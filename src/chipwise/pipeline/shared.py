"""Shared weights in a run: trained once over designs within the limits, then asked about a great many of them.

What is trained and scored lies in ``supernet/`` of the run's folder and is taken up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.errors import SpecError, WorkerError
from chipwise.core.files import read_json, write_json
from chipwise.core.workers import WorkerPool
from chipwise.run.folder import RunFolder
from chipwise.spec import ArchSpec
from chipwise.training.tokenizer import TokenStore

TRAINED = 512  # designs that share the weights, at most
FEWEST_SCORED, MOST_SCORED = 12, 160  # of them, how many are asked about before anything else is trained
SCORING_SHARE = 0.2  # of the training's budget, for that
SCORE_BYTES = 30_000  # of the validation text that a design is scored on
SCORING_S = 0.25  # CPU seconds that one score is planned with


class SharedWeights:
    """One training of shared weights, and what they say of designs.

    Args:
        folder: The run's.
        store: Tokenised text.
        archs: The designs that are trained together; one that is listed twice is trained twice as often.
        budget_s: CPU seconds of the training.
        seed: Of weights, text and steps.
    """

    def __init__(
        self, folder: RunFolder, store: TokenStore, archs: Sequence[ArchSpec], *, budget_s: float, seed: int
    ) -> None:
        self._place, self._store, self._archs = folder.path / "supernet", store, tuple(archs)
        self._budget_s, self._seed = budget_s, seed
        self._weights: str | None = None

    def train(self, pool: WorkerPool, heard: Callable[[dict[str, Any]], None]) -> None:
        """Trains, or takes up what was trained. ``heard`` gets fields of an ``Update`` about once a second.

        Raises:
            WorkerError: The training failed; the message says why.
        """
        from chipwise.training.supernet.job import SupernetJob

        sizes = sorted({arch.vocab_size for arch in self._archs})
        job = SupernetJob(
            archs=self._archs,
            tokens=tuple(str(self._store.tokens_path(size)) for size in sizes),
            folder=str(self._place),
            cpu_budget_s=self._budget_s,
            seed=self._seed,
        )
        number = pool.submit(job.to_data())
        for event in pool.events():
            if event.job != number:
                continue
            if event.kind == "progress":
                heard(event.data)
                continue
            if event.kind == "failed":
                raise WorkerError(f"the training of shared weights failed: {event.data['message']}")
            self._weights = str(event.data["weights"])

    def scores(self, archs: Sequence[ArchSpec], told: Callable[[int, int], None]) -> NDArray[np.float64]:
        """Bits per byte with inherited weights, (n,); NaN of designs that cannot be cut from the weights."""
        import torch

        from chipwise.training.supernet import score, whole_of
        from chipwise.training.supernet.score import read_weights

        path = self._place / "scores.json"
        known: dict[str, float | None] = read_json(path) if path.exists() else {}
        missing = {arch.digest: arch for arch in archs if arch.digest not in known}
        if missing:
            if self._weights is None:
                raise WorkerError("shared weights are asked before they are trained")
            whole, tensors, threads = whole_of(self._archs), read_weights(self._weights), torch.get_num_threads()
            texts = {size: self._store.tokens(size) for size in {arch.vocab_size for arch in missing.values()}}
            torch.set_num_threads(1)
            try:
                for done, (name, arch) in enumerate(missing.items(), start=1):
                    try:
                        (known[name],) = score(tensors, whole, [arch], texts, max_validation_bytes=SCORE_BYTES)
                    except SpecError:
                        known[name] = None
                    told(done, len(missing))
            finally:
                torch.set_num_threads(threads)
            write_json(path, known)
        found = (known[arch.digest] for arch in archs)
        return np.array([math.nan if value is None else value for value in found])


def scored(budget_s: float) -> int:
    """How many designs are asked about after a training of ``budget_s``."""
    return int(min(MOST_SCORED, max(FEWEST_SCORED, SCORING_SHARE * budget_s / SCORING_S)))


def planned_cpu_s(budget_s: float) -> float:
    """CPU seconds that a run sets aside for a training of ``budget_s`` and its scores."""
    return budget_s + scored(budget_s) * SCORING_S if budget_s else 0.0

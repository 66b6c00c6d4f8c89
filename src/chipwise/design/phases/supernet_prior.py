"""The supernet of a run: it is trained once on designs within the limits, and its scores are the quality model's prior.

Training and scores are stored in ``supernet/`` in the run's folder and can be resumed. The predicted loss of a
candidate is a product of three factors: the scaling law's prediction, the supernet's correction weighted by a trust,
and the quality model's correction. The trust starts at a fixed value and is updated with the results of the run's own
training.

References:
    Modelling an expensive quantity as a scaled cheap quantity plus a difference: Kennedy & O'Hagan 2000,
    Biometrika 87:1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.core.fields import convert
from chipwise.core.files import read_json, write_json
from chipwise.design.run.folder import RunFolder
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.quality_model import QualityModel
from chipwise.design.strategies.strategy import Problem
from chipwise.errors import SpecError, WorkerError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.search_space import Rows
from chipwise.training.supernet.job import SupernetJob
from chipwise.training.supernet.whole import whole_of
from chipwise.training.tasks.protocol import TaskData
from chipwise.training.trainers.protocol import Trainer

TRAINED = 512  # most designs that share the supernet's weights
FEWEST_SCORED, MOST_SCORED = 12, 160  # fewest and most designs that are scored before other training
SCORING_SHARE = 0.2  # CPU time for scoring, as a share of that for training the supernet
SCORE_BYTES = 30_000  # bytes of validation text on which a design is scored
SCORING_S = 0.25  # planned CPU seconds per score
TRUST = 0.5  # trust in the supernet before any other training
WEIGHT = 2.0  # training runs that this first trust weighs as much as
_NEGLIGIBLE = 1e-12  # below this variance, scores do not distinguish candidates


class Supernet:
    """Trains one supernet, and scores designs with the weights that they inherit from it.

    Args:
        folder: The run's folder.
        data: The run's text.
        archs: The designs that are trained together; a design that is listed twice is trained twice as often.
        budget_s: CPU seconds for training.
        seed: Random seed of weights, text and steps.
    """

    def __init__(
        self, folder: RunFolder, data: TaskData, archs: Sequence[ArchSpec], *, budget_s: float, seed: int
    ) -> None:
        self._place, self._data, self._archs = folder.path / "supernet", data, tuple(archs)
        self._budget_s, self._seed = budget_s, seed
        self._weights: str | None = None

    def train(self, trainer: Trainer, on_progress: Callable[[float], None]) -> None:
        """Trains the supernet, or continues its training; reports the finished share about once a second.

        Raises:
            WorkerError: Training failed; the message says why.
        """
        one_each = {arch.vocab_size: arch for arch in self._archs}
        job = SupernetJob(
            archs=self._archs,
            tokens=tuple(self._data.data(one_each[size]).path for size in sorted(one_each)),
            folder=str(self._place),
            cpu_budget_s=self._budget_s,
            seed=self._seed,
        )
        for event in trainer.run([job]):
            if event.kind == "progress":
                on_progress(float(event.data["share"]))
                continue
            if event.kind == "failed":
                raise WorkerError(f"the training of the supernet failed: {event.data['message']}")
            self._weights = str(event.data["weights"])

    def scores(self, archs: Sequence[ArchSpec], on_progress: Callable[[int, int], None]) -> Float64Array:
        """Bits per byte of each design with the weights it inherits, (n,); NaN for designs outside the supernet."""
        import torch

        from chipwise.training.supernet.score import read_weights, score

        path = self._place / "scores.json"
        known = convert(dict[str, float | None], read_json(path), path.name) if path.exists() else {}
        missing = {arch.digest: arch for arch in archs if arch.digest not in known}
        if missing:
            if self._weights is None:
                raise WorkerError("the supernet must be trained before it scores designs")
            whole, tensors, threads = whole_of(self._archs), read_weights(self._weights), torch.get_num_threads()
            one_each = {arch.vocab_size: arch for arch in missing.values()}
            texts: dict[int, Any] = {size: self._data.data(arch).load() for size, arch in one_each.items()}
            torch.set_num_threads(1)
            try:
                for done, (name, arch) in enumerate(missing.items(), start=1):
                    try:
                        (known[name],) = score(tensors, whole, [arch], texts, max_validation_bytes=SCORE_BYTES)
                    except SpecError:
                        known[name] = None
                    on_progress(done, len(missing))
            finally:
                torch.set_num_threads(threads)
            write_json(path, known)
        found = (known[arch.digest] for arch in archs)
        return np.array([math.nan if value is None else value for value in found])


def designs_to_score(budget_s: float) -> int:
    """Number of designs to score after training the supernet for ``budget_s``."""
    return int(min(MOST_SCORED, max(FEWEST_SCORED, SCORING_SHARE * budget_s / SCORING_S)))


def planned_cpu_s(budget_s: float) -> float:
    """CPU seconds reserved for training the supernet for ``budget_s`` and scoring designs."""
    return budget_s + designs_to_score(budget_s) * SCORING_S if budget_s else 0.0


class SupernetPrior:
    """Predicts ln(supernet's loss / law's prediction) of any design, relative to the mean over the scored designs.

    Args:
        problem: The search.
        encoder: Turns rows (designs encoded as integers) into features.
        rows: Rows of the scored designs, (n, d).
        residuals: log(score / law) of each row, (n,).
        seed: Seed of the quality model that interpolates to other rows.
    """

    def __init__(self, problem: Problem, encoder: Encoder, rows: Rows, residuals: ArrayLike, *, seed: int) -> None:
        values = np.asarray(residuals, float)
        self._centre, self._variance = float(values.mean()), float(values.var())
        self._model = QualityModel(problem, seed=seed, encoder=encoder).fit(rows, values)

    def __call__(self, rows: Rows) -> Float64Array:
        """The prior of rows, (n,); positive where the ratio of the supernet's loss to the law's is above average."""
        return np.asarray(self._model.predict(rows)[0] - self._centre)

    def trust(self, rows: Rows, residuals: ArrayLike) -> float:
        """How much to trust the prior: the slope of the trained designs' ``residuals`` against the prior, at least 0.

        The slope is shrunk towards ``TRUST``, which weighs as much as ``WEIGHT`` training runs.
        """
        if self._variance < _NEGLIGIBLE:
            return 0.0
        if not len(rows):
            return TRUST
        x, y = self(rows), np.asarray(residuals, float)
        x, y = x - x.mean(), y - y.mean()
        belief = WEIGHT * self._variance
        return max(0.0, float((x @ y + belief * TRUST) / (x @ x + belief)))

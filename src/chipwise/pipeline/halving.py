"""The dear part of a search: trainings in rungs, the best going on, and measurements before the long ones.

Everything is decided from what the study holds, so a search that was killed decides the same when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import ChipwiseError, Infeasible
from chipwise.pipeline.choosing import Observation
from chipwise.pipeline.plan import Rung
from chipwise.run.trials import Candidate, Trials
from chipwise.space.search_space import Rows

BATCH_PER_WORKER = 2
FEWEST = 3  # trainings before the quality model is asked


@dataclass(frozen=True)
class Job:
    """One training that is wanted: the candidate's trial, and the CPU seconds it shall have had in total."""

    candidate: Candidate
    cpu_s: float
    rung: int


class Trainer(Protocol):
    """Trains candidates, several side by side."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, Any] | ChipwiseError]]:
        """Each job with its result, or with why it failed, in the order in which they finish."""
        ...


class Choosing(Protocol):
    """Chooses candidates as trainings come in. Deterministic given its seed and what it is told."""

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows, none of them in ``taken``; fewer when there are no more."""
        ...

    def nearest(self, choices: Mapping[str, Any]) -> list[int]:
        """The row of the space that is closest to a design drawn by hand."""
        ...

    def in_other_formats(self, row: Sequence[int]) -> Rows:
        """``row`` in every other weight format in which it is predicted within the limits."""
        ...

    def law(self, rows: Rows) -> Float64Array:
        """Bits per byte of ``rows`` after a full training, as believed before anything was trained."""
        ...

    def expected(self, observations: Sequence[Observation], rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of bits per byte of ``rows`` after a full final training."""
        ...


def measured_within(item: Candidate, measure: Callable[[Candidate], bool]) -> bool:
    """Whether the candidate keeps the limits as measured; it is measured where it was not yet."""
    return bool(item.trial.notes["within"]) if "within" in item.trial.notes else measure(item)


class Halving:
    """Successive halving over real trainings.

    Args:
        trials: Where everything is kept.
        plan: Rungs, shortest first; the last is the full final budget.
        chooser: Chooses first-rung candidates.
        trainer: Runs trainings.
        measure: Measures candidates on the target and notes what was found; True for those within the limits.
        predict: Metrics of a row as they are promised, for the notes of a new trial.
        workers: Trainings side by side.
        begun: Told the name of each stage.
        score: What shared weights say of rows, for the notes of new trials; NaN where they cannot say.
        counts: What one bit per byte of a candidate counts as: 1, and more past soft limits.
    """

    def __init__(
        self,
        trials: Trials,
        plan: Sequence[Rung],
        *,
        chooser: Choosing,
        trainer: Trainer,
        measure: Callable[[Candidate], bool],
        predict: Callable[[Rows], dict[str, list[float]]],
        workers: int,
        begun: Callable[[str], None],
        score: Callable[[Rows], Float64Array] | None = None,
        counts: Callable[[Candidate], float] = lambda item: 1.0,
    ) -> None:
        self._trials, self._plan, self._chooser, self._trainer = trials, tuple(plan), chooser, trainer
        self._measure, self._predict, self._workers, self._begun = measure, predict, workers, begun
        self._score, self._counts = score, counts

    def explore(self, baselines: Sequence[Candidate]) -> None:
        """The first rung: batches of candidates, each chosen after the one before was trained.

        Before them the baselines have the same short training; the best of them is then trained for the full budget
        beside the first batch, which is as long, so that later choices know what a full training gives.
        """
        self._begun("first trainings")
        wanted, last = self._plan[0].count, len(self._plan) - 1
        self.train(baselines, 0)
        baseline = self.best_baseline(baselines)
        full = [] if baseline is None else [Job(baseline, self._plan[last].cpu_s, last)]
        beside = round(self._plan[last].cpu_s / self._plan[0].cpu_s) * (self._workers - 1)
        while True:
            mine = self._mine()
            unfinished = [item for item in mine if item.alive and item.after(0) is None]
            if not unfinished:
                count = min(BATCH_PER_WORKER * self._workers if mine else max(2, beside), wanted - len(mine))
                if count <= 0:
                    return
                rows = self._chooser.next(count, self.observations(), [item.row or [] for item in mine])
                if not len(rows):
                    return
                numbers = [self._trials.add(row, predicted=self._predict(row[None])) for row in rows]
                self._note_beliefs(numbers, rows)
                unfinished = [self._trials[number] for number in numbers]
            self._run([*full, *(Job(item, self._plan[0].cpu_s, 0) for item in unfinished)])
            full = []

    def promote(self, baselines: Sequence[Candidate]) -> tuple[list[Candidate], Candidate | None]:
        """The rungs after the first.

        Returns:
            The finalists, trained for the full budget, most promising first; and the baseline, trained as long.

        Raises:
            Infeasible: No candidate was measured within the limits.
        """
        last = len(self._plan) - 1
        for rung in range(1, last + 1):
            self._begun(f"trainings of {self._plan[rung].cpu_s:.0f} s")
            self.train(self.chosen(rung), rung)
        finalists = [item for item in self.ranked(self._mine()) if item.alive and item.after(last) is not None]
        if last == 0:
            finalists = [item for item in finalists if measured_within(item, self._measure)][:2]
        if not finalists:
            raise Infeasible("every finalist failed in training; the trials' reasons are in trials.csv")
        finalists = [self._in_best_format(item, last) for item in finalists]
        trained = [item for item in map(self._fresh, baselines) if item.alive and item.after(last) is not None]
        return finalists, trained[0] if trained else None

    def _in_best_format(self, item: Candidate, rung: int) -> Candidate:
        """A finalist in the weight format of fewest bits per byte, as they count, in which it is within the limits.

        Searching asks of each architecture one format alone. The training is there, only the rounding is judged anew.
        """
        others = []
        for row in self._chooser.in_other_formats(item.row or []):
            known = next((other for other in self._trials.all() if other.row == [int(i) for i in row]), None)
            number = self._trials.add(row, predicted=self._predict(row[None])) if known is None else known.number
            if known is None:
                self._trials.note(number, format_of=item.number)
            others.append(self._trials[number])
        self.train(others, rung)
        better = [
            other
            for other in map(self._fresh, others)
            if other.alive and other.after(rung) and self._counted(other) < self._counted(item)
        ]
        better.sort(key=self._counted)
        fitting = (self._fresh(other) for other in better if measured_within(other, self._measure))
        return next((other for other in fitting if self._counted(other) < self._counted(item)), item)

    def _counted(self, item: Candidate) -> float:
        """Bits per byte after the longest training, as they count."""
        return np.inf if item.quality is None else item.quality * self._counts(item)

    def spare(self, finalists: Sequence[Candidate]) -> list[Candidate]:
        """Whom to try where no finalist keeps what it promised: finalists' other formats, then the most promising."""
        known, last = {item.number for item in finalists}, len(self._plan) - 1
        left = [item for item in self.ranked(self._trials.all()) if item.number not in known]
        left = [item for item in left if item.alive and item.rungs and item.trial.notes.get("within")]
        return sorted(left, key=lambda item: item.after(last) is None)

    def _note_beliefs(self, numbers: Sequence[int], rows: Rows) -> None:
        """Keeps what was believed of candidates before their first training; a report says how good it was."""
        observations = self.observations()
        believed = self._chooser.expected(observations, rows) if len(observations) >= FEWEST else None
        scores = self._score(rows) if self._score is not None else np.full(len(rows), np.nan)
        for i, (number, law) in enumerate(zip(numbers, self._chooser.law(rows), strict=True)):
            known = {"law": float(law)} | ({"supernet": float(scores[i])} if np.isfinite(scores[i]) else {})
            self._trials.note(number, **known)
            if believed is not None:
                self._note_belief(self._trials[number], 0, float(believed[0][i]), float(believed[1][i]))

    def _note_belief(self, item: Candidate, rung: int, mean: float, std: float) -> None:
        held = item.trial.notes.get("believed", {})
        if str(rung) not in held:
            self._trials.note(item.number, believed={**held, str(rung): [mean, std]})

    def _fresh(self, item: Candidate) -> Candidate:
        return self._trials[item.number]

    def best_baseline(self, baselines: Sequence[Candidate]) -> Candidate | None:
        """The baseline of fewest bits per byte, as they count, after the first rung."""
        trained = [item for item in map(self._fresh, baselines) if item.alive and item.after(0) is not None]
        return min(
            trained,
            key=lambda item: (item.after(0) or {})["quantised_bits_per_byte"] * self._counts(item),
            default=None,
        )

    def chosen(self, rung: int) -> list[Candidate]:
        """The candidates that rung number ``rung`` trains: the most promising of the one before that keep the limits.

        Raises:
            Infeasible: Every candidate was measured outside the limits.
        """
        already = [item for item in self._mine() if item.trial.notes.get("promoted", 0) >= rung and item.alive]
        count = self._plan[rung].count
        for item, belief in self._believed([item for item in self._mine() if item.after(rung - 1) is not None]):
            if len(already) >= count:
                break
            if item.number in {other.number for other in already} or not item.alive:
                continue
            if measured_within(item, self._measure):
                self._trials.note(item.number, promoted=rung)
                if belief is not None:
                    self._note_belief(self._trials[item.number], rung, *belief)
                already.append(self._trials[item.number])
        if not already:
            raise Infeasible(
                "every candidate that was trained broke a limit when it was measured on this machine; loosen the "
                "limits, or measure on a quieter machine (runs resume with --resume)"
            )
        return already

    def train(self, candidates: Sequence[Candidate], rung: int) -> None:
        """Trains what rung number ``rung`` still lacks."""
        self._run([Job(item, self._plan[rung].cpu_s, rung) for item in candidates])

    def _run(self, jobs: Sequence[Job]) -> None:
        todo = [job for job in jobs if job.candidate.alive and job.candidate.after(job.rung) is None]
        for job, result in self._trainer.run(todo):
            if isinstance(result, ChipwiseError):
                self._trials.fail(job.candidate.number, str(result))
            else:
                self._trials.trained(job.candidate.number, {**result, "rung": job.rung})

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates by the bits per byte they are believed to reach after a full training, as they count."""
        return [item for item, _ in self._believed(candidates)]

    def _believed(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, tuple[float, float] | None]]:
        """The same with mean and standard deviation of what is believed; None where nobody was asked yet."""
        candidates = [item for item in candidates if item.row is not None]
        observations = self.observations()
        if len(observations) < FEWEST or not candidates:
            ordered = sorted(candidates, key=lambda item: (-len(item.rungs), self._counted(item)))
            return [(item, None) for item in ordered]
        rows = np.array([item.row for item in candidates])
        mean, std = self._chooser.expected(observations, rows)
        counted = mean * [self._counts(item) for item in candidates]
        return [(candidates[i], (float(mean[i]), float(std[i]))) for i in np.argsort(counted, kind="stable")]

    def observations(self) -> list[Observation]:
        """Every finished training; a hand-drawn design speaks for the candidate of the space that is closest to it."""
        return [
            Observation(
                row=item.row or self._chooser.nearest(item.trial.notes["choices"]),
                cpu_s=rung["cpu_s"],
                tokens=rung["tokens"],
                bits_per_byte=rung["quantised_bits_per_byte"],
            )
            for item in self._trials.all()
            for rung in item.rungs
        ]

    def _mine(self) -> list[Candidate]:
        return [item for item in self._trials.all() if not item.is_baseline and item.format_of is None]

"""Successive halving over real training: the plan of rungs, promotions, and measurements before long training.

The plan is made from the last rung to the first. The last rung trains the finalists for the full final budget. Each
earlier rung trains about ``ETA`` times as many candidates, each for 1/``ETA`` of the time; the first rung gets the
remaining budget. A promoted candidate continues from its checkpoint, so only the additional training is charged. All
decisions depend only on the study, so a search that was killed makes the same decisions when it is resumed.

References:
    Successive halving: Jamieson & Talwalkar 2016, arXiv:1502.07943.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol

import numpy as np

from chipwise.core.record import Record
from chipwise.design.phases.choosing import DRAWN, Chooser, Observation
from chipwise.design.phases.measuring import Measurer
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.trials import Candidate, Predictions, Trials
from chipwise.errors import ChipwiseError, Infeasible, SpecError
from chipwise.model.space.search_space import Rows
from chipwise.training.laws.operators import AGREEMENT, SPREAD

ETA = 3.0
DEEPEST = 2  # most rungs before the last
FINALISTS, MOST_FINALISTS = 2, 5  # usual number of finalists, and most if short training is not informative
BATCH_PER_WORKER = 2
FEWEST = 3  # training runs before the quality model is used
OVERHEAD = 1.3  # assumed cost of a second of training, including validation and worker start where these are charged
LONG_OVERHEAD = 1.08  # the same for training that takes most of the budget
LEAST_FINAL = 0.2  # share of the whole budget that must be left for the only final training run
MOST_FIRST = 64  # most first training runs before the only final one
LEAST_GAIN = 0.005  # ln loss that first training runs must save, else they are left out; about a seed's noise
MOST_RECONSIDERED = 2  # most designs measured because a measurement corrected the predictions
MOST_TRIED = 6  # most designs measured to find one within the limits, if a single design is trained
PACKED = 0.3  # least share of the loss due to rounding to nearest that others leave (benchmarks/quantisers.py)
ALL_FAILED = "every candidate failed in training; the trials' reasons are in trials.csv"
NONE_MEASURED = "no candidate that was trained could be measured; the trials' reasons are in trials.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung of the plan: trains each of ``count`` candidates up to a total of ``budget`` seconds or tokens."""

    budget: float
    count: int


def plan_rungs(allowance: Allowance, training: float, *, least_share: float = ETA**-DEEPEST) -> tuple[Rung, ...]:
    """Plans rungs, shortest training first, that together use about the budget ``training``.

    No rung trains for less than ``least_share`` of full training, because the losses would not distinguish designs. If
    this leaves fewer rungs than usual, up to 1/``ETA`` of the candidates are trained in full. If short training is not
    informative at all, every candidate is trained in full.

    Raises:
        SpecError: The budget is too small for one final training run.
    """
    final, best = allowance.final, plan_finals(allowance, training)
    deepest = min(DEEPEST, math.floor(1e-9 - math.log(least_share, ETA)))
    for tops in range(1, (FINALISTS if deepest == DEEPEST else MOST_FINALISTS) + 1):
        for below in range(1, deepest + 1):
            budgets = [final / ETA**step for step in range(below, -1, -1)]
            if budgets[0] < allowance.shortest:
                break
            counts = [max(tops + 1, round(tops * ETA**step / 1.5)) for step in range(below, 0, -1)] + [tops]
            promotions = sum(
                count * (now - before) for count, now, before in zip(counts[1:], budgets[1:], budgets[:-1], strict=True)
            )
            first = int((training - promotions) / budgets[0])
            if first > counts[1] and (tops <= FINALISTS or first >= ETA * counts[1]):
                best = tuple(
                    Rung(budget=budget, count=count)
                    for budget, count in zip(budgets, [first, *counts[1:]], strict=True)
                )
    return best


def plan_finals(allowance: Allowance, training: float) -> tuple[Rung, ...]:
    """A plan with one rung: as many full training runs as ``training`` allows.

    Raises:
        SpecError: The budget is too small for one final training run.
    """
    _check_budget(allowance, training)
    return (Rung(budget=allowance.final, count=int(training / allowance.final)),)


def plan_alone(
    allowance: Allowance,
    training: float,
    *,
    slope: float,
    spread: float = SPREAD,
    agreement: Mapping[int, float] = AGREEMENT,
) -> tuple[Rung, ...]:
    """Plans a run that trains one design in full: short training runs choose it, and it gets the remaining budget.

    More short runs find a better design. If the best of n designs is chosen, its ln loss is below the mean. The
    expected difference is ``spread`` times ``agreement`` times the expected maximum of n standard normal variates. But
    more short runs leave less budget for the chosen design. The plan has the number and length of short runs with the
    largest gain. It has no short runs if they gain less than ``LEAST_GAIN`` over spending the whole budget on the final
    training.

    Args:
        allowance: The budget for training.
        training: Budget that is left for all training.
        slope: Decrease of the ln loss when the final training is twice as long.
        spread: Standard deviation of the designs' ln loss after final training.
        agreement: Correlation between the ln losses after short and after final training. The keys state how many
            times longer the final training is.

    Raises:
        SpecError: Too little is left for the final training run.
    """
    least = allowance.total * LEAST_FINAL
    if training < least:
        after = "calibration, measuring and tasks" if allowance.whole else "other training runs"
        needs = f"the {allowance.show(least)} that the winner's training needs; raise the budget"
        raise _too_little(allowance, training, after, needs)
    best = LEAST_GAIN
    plan: tuple[Rung, ...] = (Rung(budget=training, count=1),)
    for parts, correlation in agreement.items():
        for count in range(2, MOST_FIRST + 1):
            each = training / (parts + count)
            rest = training - (count - 1) * each  # the chosen design continues its own first training
            if each < allowance.shortest or rest < ETA * each or rest < least:
                continue
            found = spread * correlation * NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
            gain = found + slope * math.log2(rest / training)
            if gain > best:
                best, plan = gain, (Rung(budget=each, count=count), Rung(budget=rest, count=1))
    return plan


def _check_budget(allowance: Allowance, training: float) -> None:
    if training < allowance.final:
        after = "calibration, measuring, tasks and the reference design" if allowance.whole else "the reference design"
        needs = f"one final training of {allowance.show(allowance.final)}; raise the budget or lower budget.final"
        raise _too_little(allowance, training, after, needs)


def _too_little(allowance: Allowance, training: float, after: str, needs: str) -> SpecError:
    return SpecError(f"after {after}, {allowance.show(max(training, 0))} are left, less than {needs}", field="budget")


@dataclass(frozen=True)
class Job:
    """A request to train a candidate until its training has a total length of ``budget``."""

    candidate: Candidate
    budget: float
    rung: int


class Trainer(Protocol):
    """Trains candidates, several in parallel."""

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, dict[str, object] | ChipwiseError]]:
        """Trains the candidates of ``jobs``; yields each job with its result or error as it finishes."""
        ...


Propose = Callable[
    [int, Sequence[Observation], Sequence[Sequence[int]]], Rows
]  # (number of candidates, finished training runs, taken rows) -> rows
Faster = Callable[[Sequence[Candidate], Candidate, Callable[[Candidate], float]], Sequence[Candidate]]


class Halving:
    """Runs successive halving over real training.

    Args:
        trials: The run's trials.
        plan: Rungs, shortest first; the last one is full final training.
        chooser: Predicts the quality of candidates and thereby decides promotions.
        trainer: Trains candidates.
        measurer: Measures candidates before long training.
        predict: Predicts the costs of an encoded design, for the notes of a new trial.
        workers: Number of candidates trained in parallel.
        propose: Proposes candidates for the first rung. Default: the chooser's :meth:`Chooser.next`.
        on_phase: Called with the name of each phase.
        penalty_factor: Factor on a candidate's bits per byte: 1, or more if soft limits are exceeded.
        allowance: The budget for training, its unit, and the length of a full training run.
        left: Returns the remaining budget for training. Default: no limit.
        kept: Returns the part of the remaining budget that the end of the run needs if this candidate is trained, such
            as for learned rounding.
        faster: Selects the candidates that are as good as a given one and clearly faster, fastest first. By default, it
            selects no candidate.
    """

    def __init__(
        self,
        trials: Trials,
        plan: Sequence[Rung],
        *,
        chooser: Chooser,
        trainer: Trainer,
        measurer: Measurer,
        predict: Callable[[Rows], Predictions],
        workers: int,
        propose: Propose | None = None,
        on_phase: Callable[[str], None] = lambda phase: None,
        penalty_factor: Callable[[Candidate], float] = lambda item: 1.0,
        allowance: Allowance,
        left: Callable[[], float] = lambda: math.inf,
        kept: Callable[[Candidate], float] = lambda item: 0.0,
        faster: Faster = lambda items, best, loss: [],
    ) -> None:
        self._trials, self._plan, self._chooser, self._trainer = trials, tuple(plan), chooser, trainer
        self._measurer, self._predict, self._workers, self._on_phase = measurer, predict, workers, on_phase
        self._propose = propose or chooser.next
        self._penalty_factor = penalty_factor
        self._allowance, self._left, self._kept, self._faster = allowance, left, kept, faster
        self._recentred = chooser.centre if propose is None else lambda: None
        self._trained, self._used = 0.0, 0.0  # what finished training was charged, and what it cost in total

    def explore(self, references: Sequence[Candidate]) -> None:
        """Runs the first rung in batches of candidates; each batch is chosen after the previous one was trained.

        The reference designs are trained first, for the same short time. The best of them is then trained in full
        alongside the first batch, so that later choices know the result of full training.
        """
        if self._at_once:
            self._train_at_once()
            return
        self._on_phase("first trainings")
        first, last = self._plan[0], len(self._plan) - 1
        untrained = sum(item.alive and not item.trained_to(0) for item in references)
        anew = not any(item.rungs for item in self._candidates())
        if anew or self._affordable(first.budget * max(1, untrained), 0.0) > 0:
            self.train(references, 0)
        reference = self.best_reference(references)
        full = (
            [] if reference is None or reference.trained_to(last) else [Job(reference, self._plan[last].budget, last)]
        )
        beside = round(self._plan[last].budget / first.budget) * (self._workers - 1)
        while True:
            candidates = self._candidates()
            unfinished = [item for item in candidates if item.alive and not item.rungs]
            if not unfinished:
                later = self._promotions(1) + sum(job.budget for job in full)
                wanted = BATCH_PER_WORKER * self._workers if candidates or self._allowance.alone else max(2, beside)
                count = min(wanted, first.count - len(candidates), self._affordable(first.budget, later))
                if not candidates:
                    count = max(count, min(2, first.count))
                if count <= 0:
                    if full and self._affordable(full[0].budget, 0.0) > 0:
                        self._run(full)
                    return
                rows = self._propose(count, self.observations(), [item.row or () for item in candidates])
                if not len(rows):
                    return
                numbers = [self._trials.add(row, predicted=self._predict(row[None])) for row in rows]
                unfinished = [self._trials[number] for number in numbers]
            self._run([*full, *(Job(item, first.budget, 0) for item in unfinished)])
            full = []

    @property
    def _at_once(self) -> bool:
        """Whether one design is trained for the whole budget, without short training runs to choose it."""
        return self._allowance.alone and len(self._plan) == 1

    def _train_at_once(self) -> bool:
        """Trains the most promising design within the limits for the remaining budget; False if none can be trained.

        Designs are measured until one meets the limits. If none of ``MOST_TRIED`` designs does, the one that comes
        closest is trained.
        """
        if self._finished():
            return False
        self._on_phase("choosing the design")
        while True:
            tried = [item for item in self._candidates() if not item.rungs]
            item = next((item for item in reversed(tried) if self._keeps_limits(item)), None)
            if item is not None:
                item = self._reconsidered(item)
                break
            taken = [item.row or () for item in self._candidates()]
            rows = np.empty((0, 0), int)
            if len(tried) < MOST_TRIED:
                centre = self._new_centre()  # a measurement that broke a limit corrected the predictions
                rows = self._propose(1, self.observations(), taken) if centre is None else centre
            if not len(rows):
                alive = [item for item in map(self._fresh, tried) if item.alive]
                if not alive:
                    return False
                item = min(alive, key=self._measurer.beyond)
                break
            self._trials.add(rows[0], predicted=self._predict(rows))
        self._give_the_rest(item)
        self._on_phase(f"training of {self._allowance.show(self._plan[0].budget)}")
        self.train([self._fresh(item)], 0)
        return True

    def _reconsidered(self, item: Candidate) -> Candidate:
        """``item``, or a design that is expected to be better now that measurements have corrected the predictions.

        A design that was predicted to be outside the limits may turn out to be within them if ``item`` was predicted to
        be slower than it is. Such a design is measured, too, and replaces ``item`` if it meets the limits.
        """
        for _ in range(MOST_RECONSIDERED):
            row = self._new_centre()
            if self._rest_given or item.row is None or row is None:
                break
            now, then = self._chooser.law(np.vstack([row[0], item.row]))
            if now >= then * (1 - LEAST_GAIN):
                break
            other = self._trials[self._trials.add(row[0], predicted=self._predict(row))]
            if not self._keeps_limits(other):
                break
            item = other
        return item

    def _new_centre(self) -> Rows | None:
        """The design that is best by the present predictions, (1, genes), unless it is a candidate already."""
        row = self._recentred()
        known = row is not None and tuple(row[0].tolist()) in {item.row for item in self._candidates()}
        return None if known else row

    def promote(self, references: Sequence[Candidate]) -> tuple[list[Candidate], Candidate | None]:
        """Runs the rungs after the first.

        Returns:
            The finalists, trained for the full budget, most promising first; and the reference design, with equally
            long training.

        Raises:
            Infeasible: Every finalist failed in training, or none of them could be measured.
        """
        last = len(self._plan) - 1
        for rung in range(1, last + 1):
            chosen = self.chosen(rung)
            if self._allowance.alone:
                self._give_the_rest(chosen[0])
            self._on_phase(f"trainings of {self._allowance.show(self._plan[rung].budget)}")
            self.train(chosen, rung)
        finalists = self._finished()
        while not finalists and self._allowance.alone and self._left() > self._allowance.shortest:
            if last:
                chosen = self.chosen(last)
                self._give_the_rest(chosen[0])
                self.train(chosen, last)  # the only final training failed, so the next design gets the rest
            elif not self._train_at_once():
                break
            finalists = self._finished()
        if not finalists:
            raise Infeasible(ALL_FAILED)
        if last == 0:  # nothing was measured yet: take the best two that meet the limits
            finalists = self._first_within(finalists, 2)
        finalists = [self._in_best_format(item, last) for item in finalists]
        if self._allowance.alone:
            finalists = [other for item in finalists for other in (item, *self._perhaps_as_good(item, last))]
        trained = [item for item in map(self._fresh, references) if item.alive and item.after(last) is not None]
        return finalists, trained[0] if trained else None

    def _finished(self) -> list[Candidate]:
        """Candidates that were trained for the full budget, most promising first."""
        last = len(self._plan) - 1
        return [item for item in self.ranked(self._candidates()) if item.alive and item.after(last) is not None]

    def _give_the_rest(self, item: Candidate) -> None:
        """Gives the remaining budget to ``item``, whose final training run is the only one or follows a failed one."""
        study, left, kept = self._trials.study, self._left(), self._kept(item)
        left = left - kept if left - kept > self._allowance.shortest else left
        if self._rest_given or not math.isfinite(left):
            return
        *before, last = self._plan
        overhead = LONG_OVERHEAD if self._allowance.whole else 1.0
        done = before[-1].budget if before else 0.0  # training that the chosen design continues from
        self._plan = (*before, replace(last, budget=max(left / overhead + done, ETA * done)))
        study.remember(plan=[[rung.budget, rung.count] for rung in self._plan], rest=self._failed_finals)

    @property
    def _failed_finals(self) -> int:
        """Number of candidates that failed, among those that were to get the remaining budget."""
        return sum((item.notes.promoted > 0 or self._at_once) and not item.alive for item in self._candidates())

    @property
    def _rest_given(self) -> bool:
        """Whether a candidate has got the remaining budget that has not failed."""
        return self._trials.study.memory.get("rest") == self._failed_finals

    def _first_within(self, items: Sequence[Candidate], count: int) -> list[Candidate]:
        """Measures candidates until ``count`` of them meet the limits; returns these, or the closest one if none does.

        Raises:
            Infeasible: None of the candidates could be measured.
        """
        found: list[Candidate] = []
        for item in items:
            if len(found) < count and self._measurer.within_limits(item):
                found.append(self._fresh(item))
        left = [item for item in map(self._fresh, items) if item.alive]
        if not found and not left:
            raise Infeasible(NONE_MEASURED)
        return found or [min(left, key=self._measurer.beyond)]

    def _in_best_format(self, item: Candidate, rung: int) -> Candidate:
        """Replaces a finalist with its best variant within the limits, or with a faster variant that is as good.

        The search evaluates each architecture with one weight format and, for images, one way to generate them. Here
        the trained weights are evaluated with other ways to generate images, then in other weight formats. Losses
        include penalties.
        """
        for names in (DRAWN, ("weights",)):
            item = self._in_best_of(item, self._chooser.in_other_formats(item.row or (), names), rung)
        return item

    def _in_best_of(self, item: Candidate, rows: Rows, rung: int) -> Candidate:
        """The best of ``item`` and its variants ``rows``, or the fastest one that is as good."""
        others = []
        for row in rows:
            place = tuple(int(i) for i in row)
            known = next((other.number for other in self._trials.all() if other.row == place), None)
            if known is None:
                known = self._trials.add(row, predicted=self._predict(row[None]), format_of=item.number)
            others.append(self._trials[known])
        self.train(others, rung)
        better = [
            other
            for other in map(self._fresh, others)
            if other.alive and other.after(rung) and self._counted(other) < self._counted(item)
        ]
        better.sort(key=self._counted)
        fitting = (self._fresh(other) for other in better if self._measurer.within_limits(other))
        best = next((other for other in fitting if self._counted(other) < self._counted(item)), item)
        tried = [other for other in map(self._fresh, others) if other.alive and other.after(rung)]
        faster = self._faster([*tried, item], best, self._counted)
        return next((self._fresh(other) for other in faster if self._measurer.within_limits(other)), best)

    def _perhaps_as_good(self, item: Candidate, rung: int) -> list[Candidate]:
        """The fastest variant of a finalist that may become as good as the finalist; empty if there is none.

        The variant has another number format, and a better quantiser may lower its loss. Training evaluates weights
        that are rounded to nearest, which increases the loss. Better quantisers are assumed to leave the share
        ``PACKED`` of this increase.
        """
        training = item.design.arch.as_trained().digest
        forms = [one for one in self._trials.all() if one.alive and not one.is_reference]
        forms = [one for one in forms if one.design.arch.as_trained().digest == training]
        hoped = {
            one.number: (after.loss + PACKED * (after.quantised_loss - after.loss)) * self._penalty_factor(one)
            for one in forms
            if (after := one.after(rung)) is not None
        }
        done = [one for one in forms if one.number in hoped]
        faster = [one for one in self._faster(done, item, lambda one: hoped[one.number]) if one.number != item.number]
        return next(([self._fresh(one)] for one in faster if self._measurer.within_limits(one)), [])

    def _counted(self, item: Candidate) -> float:
        """The candidate's loss after its longest training run, with penalties."""
        return math.inf if item.quality is None else item.quality * self._penalty_factor(item)

    def spare(self, finalists: Sequence[Candidate]) -> list[Candidate]:
        """Candidates to try if no finalist meets the limits: those trained in full first, then other promising ones."""
        known, last = {item.number for item in finalists}, len(self._plan) - 1
        left = [item for item in self.ranked(self._trials.all()) if item.number not in known]
        left = [item for item in left if item.alive and item.rungs and item.notes.within]
        return sorted(left, key=lambda item: item.after(last) is None)

    def _fresh(self, item: Candidate) -> Candidate:
        return self._trials[item.number]

    def best_reference(self, references: Sequence[Candidate]) -> Candidate | None:
        """The reference design with the fewest bits per byte (with penalties) after the first rung."""
        trained = [(item, first) for item in map(self._fresh, references) if item.alive and (first := item.after(0))]
        counted = [(first.quantised_loss * self._penalty_factor(item), item.number) for item, first in trained]
        return self._trials[min(counted)[1]] if counted else None

    def chosen(self, rung: int) -> list[Candidate]:
        """Chooses the candidates of rung ``rung``: the most promising ones of the previous rung that meet the limits.

        If no candidate meets the limits, the one that comes closest is chosen.

        Raises:
            Infeasible: Every candidate failed.
        """
        found = [item for item in self._candidates() if item.notes.promoted >= rung and item.alive]
        step = self._plan[rung].budget - self._plan[rung - 1].budget
        affordable = self._affordable(step, self._promotions(rung + 1))
        known = {item.number for item in found}
        before = [item for item in self._candidates() if self._trained_for(item, rung) and item.number not in known]
        ahead = {item.number for item in before if item.trained_to(rung)}  # trained this long by an earlier plan
        least = 0 if any(item.number in ahead and self._keeps_limits(item) for item in before) else 1
        count = min(self._plan[rung].count, max(least, affordable))
        for item in self.ranked(before):
            paid = sum(each.number not in ahead for each in found)
            if len(found) >= self._plan[rung].count or (paid >= count and item.number not in ahead):
                continue
            if self._keeps_limits(item):
                self._trials.note(item.number, promoted=rung)
                found.append(self._fresh(item))
        if not found and not any(item.alive for item in before):
            raise Infeasible(ALL_FAILED)
        return found or self._first_within([item for item in before if item.alive], 1)

    def _trained_for(self, item: Candidate, rung: int) -> bool:
        """Whether a candidate's training is long enough for promotion to ``rung``; any length is enough for rung 1."""
        return item.trained_to(rung - 1) or (rung == 1 and bool(item.rungs))

    def _keeps_limits(self, item: Candidate) -> bool:
        return item.alive and self._measurer.within_limits(item)

    def train(self, candidates: Sequence[Candidate], rung: int) -> None:
        """Continues the training of candidates until it is as long as rung number ``rung`` requires."""
        self._run([Job(item, self._plan[rung].budget, rung) for item in candidates])

    def train_in_full(self, candidate: Candidate) -> Candidate:
        """Trains a candidate or a reference design for as long as the finalists are trained."""
        self.train([candidate], len(self._plan) - 1)
        return self._fresh(candidate)

    def _run(self, jobs: Sequence[Job]) -> None:
        todo = [job for job in jobs if job.candidate.alive and not job.candidate.trained_to(job.rung)]
        left = self._left()
        for job, result in self._trainer.run(todo):
            if isinstance(result, ChipwiseError):
                self._trials.fail(job.candidate.number, str(result))
            else:
                self._trials.trained(job.candidate.number, {**result, "rung": job.rung})
                rungs, done = job.candidate.rungs, Record(result)
                before = self._charge(rungs[-1].cpu_s, rungs[-1].tokens) if rungs else 0.0
                self._trained += max(0.0, self._charge(done.get("cpu_s", float), done.get("tokens", int)) - before)
        if todo and math.isfinite(left):
            self._used += left - self._left()

    def _charge(self, seconds: float, tokens: int) -> float:
        return self._allowance.charge(seconds=seconds, tokens=tokens)

    @property
    def overhead(self) -> float:
        """Estimate of all costs divided by the cost of training; 1 if only training is charged.

        The estimate starts at ``OVERHEAD`` and is updated with the costs so far.
        """
        if not self._allowance.whole:
            return 1.0
        prior = self._plan[-1].budget
        return (self._used + OVERHEAD * prior) / (self._trained + prior)

    def _affordable(self, each: float, later: float) -> int:
        """How many training runs of length ``each`` the budget allows if ``later`` is reserved for later training."""
        left = self._left()
        if not math.isfinite(left):
            return 10**9
        return int((left / self.overhead - later) / each)

    def _promotions(self, rung: int) -> float:
        """Planned cost of all promotions to rung number ``rung`` and later rungs."""
        pairs = zip(self._plan[rung - 1 :], self._plan[rung:], strict=False)
        return sum(above.count * (above.budget - below.budget) for below, above in pairs)

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates in order of predicted bits per byte after full training, with penalties.

        A denoiser is ranked by the loss with its best number of steps, because a denoiser that was evaluated with one
        step may be best with eight.
        """
        candidates = [item for item in candidates if item.row is not None]
        observations = self.observations()
        if len(observations) < FEWEST or not candidates:
            return sorted(candidates, key=lambda item: (-len(item.rungs), self._counted(item)))
        rows = np.array([item.row for item in candidates])
        mean, _ = self._chooser.expected(observations, rows)
        counted = mean * [self._penalty_factor(item) for item in candidates]
        counted *= [self._chooser.better_served(row) for row in rows.tolist()]
        return [candidates[i] for i in np.argsort(counted, kind="stable")]

    def observations(self) -> list[Observation]:
        """Every finished training run; reference designs are represented by the closest row of the space."""
        return [
            Observation(
                row=item.row or self._chooser.nearest(item.notes.choices),
                spent=self._charge(rung.cpu_s, rung.tokens),
                tokens=rung.tokens,
                loss=rung.quantised_loss,
            )
            for item in self._trials.all()
            for rung in item.rungs
        ]

    def _candidates(self) -> list[Candidate]:
        """Candidates of the space, one for each architecture."""
        return [item for item in self._trials.all() if not item.is_reference and item.format_of is None]

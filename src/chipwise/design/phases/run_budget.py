"""A run's budget: the shares for trainings and for the end of the run, their plan, and the minimum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from chipwise.core import units
from chipwise.core.record import Record
from chipwise.design.phases import task_evaluation
from chipwise.design.phases.finals import LEARNED_SHARE, learns
from chipwise.design.phases.going_on import charge_of, fit_to_plan, plan_with, stored_plan
from chipwise.design.phases.halving import ETA, LEAST_FINAL, OVERHEAD, Rung, plan_alone, plan_finals, plan_rungs
from chipwise.design.phases.matrix_formats import CPU_S, chosen_by_matrix
from chipwise.design.phases.supernet_prior import planned_cpu_s
from chipwise.design.phases.trainings import trained
from chipwise.design.run.budget_spec import Allowance, allowance
from chipwise.design.run.ledger import Ledger
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, Trials
from chipwise.design.targets.target import Target
from chipwise.errors import SpecError
from chipwise.training.evaluations.data import Task

MEASURING_S, MEASURING_SHARE = 5.0, 0.04  # CPU seconds, and share of the budget, for measuring the finalists
ALONE_MEASURING_SHARE = 0.015  # of a budget for one model, which is the only finalist, in at most two formats
ENDING_S, ENDING_SHARE = 4.0, 0.005  # same, for the end of the run: test text, explanations, report
FINALS_S = 60.0  # CPU seconds for measuring the finalists, if the budget covers only trainings
ROUND_S = 10.0  # advised budgets are multiples of this


class RunBudget:
    """Remaining budget of a run.

    Args:
        spec: The run.
        trials: Its trials.
        ledger: Its CPU seconds by phase.
    """

    def __init__(self, spec: RunSpec, trials: Trials, ledger: Ledger) -> None:
        self._spec, self._trials, self._ledger = spec, trials, ledger
        self.allowance = spec.allowance  # budget for trainings
        self._measuring_s = self._reserve_s = 0.0  # parts of a total budget reserved for the end

    @property
    def supernet_s(self) -> float:
        """CPU seconds of the supernet's training; 0 if there is none."""
        return self._spec.quality.shared_s(self.allowance.total)

    @property
    def left(self) -> float:
        """The remaining budget of trainings, in its unit."""
        if self.allowance.whole:
            return self.allowance.total - self._ledger.total_s - self._reserve_s
        seconds, tokens = trained(self._trials.all())
        return self.allowance.left(seconds=seconds, tokens=tokens)

    @property
    def left_for_finals_s(self) -> float:
        """CPU seconds that are left for measuring the finalists."""
        if self.allowance.whole:
            return self.left + self._measuring_s
        return FINALS_S - self._ledger.settle().get("measuring the finalists", 0.0)

    def set_aside(self, target: Target | None, tasks: Mapping[str, Task]) -> None:
        """Reserves the cost of measuring, tasks and report at the end, if the budget includes them."""
        if self.allowance.whole:
            total_s, by_matrix = self.allowance.total, chosen_by_matrix(self._spec, target)
            alone = self.allowance.alone
            self._measuring_s = measuring_s(total_s, alone=alone, by_matrix=by_matrix)
            self._measuring_s += LEARNED_SHARE * total_s if learns(self._spec, target) else 0.0
            self._reserve_s = self._measuring_s + ending_s(total_s) + task_evaluation.planned_cpu_s(tasks)

    def require(self, *, ahead_s: float = 0.0) -> None:
        """Refuses a budget as soon as it is known to be too small, unless a plan or a training exists.

        Raises:
            SpecError: The budget is too small; calibration results so far are kept.
        """
        if "plan" in self._trials.study.memory or any(item.rungs for item in self._trials.all()):
            return
        compared = any(True for _ in self._spec.task_settings.references(self._spec.space))
        trainings = 2 if compared and not self.allowance.alone else 1
        require_budget(self._spec, spent_s=self._ledger.total_s, ahead_s=ahead_s, trainings=trainings)

    def plan(self, references: Sequence[Candidate]) -> tuple[Rung, ...]:
        """Plan of trainings for the remaining budget; a resumed search gets the same plan.

        With another budget there is another plan, in which finished trainings count.
        """
        study = self._trials.study
        if known := stored_plan(study):
            return known
        tried = [item for item in self._trials.all() if not item.is_reference and item.format_of is None]
        plan = plan_with(lambda: self._plan_of_rest(references), tried, self.allowance)
        fit_to_plan(self._trials, plan, self.allowance)
        study.remember(plan=[[rung.budget, rung.count] for rung in plan])
        return plan

    def _plan_of_rest(self, references: Sequence[Candidate]) -> tuple[Rung, ...]:
        """Plan for new candidates, after reserving the needs of the reference designs.

        Raises:
            SpecError: The rest is too small for one final training.
        """
        done = [charge_of(item, self.allowance) for item in references]
        supernet_s = (
            0.0 if Record(self._trials.study.memory).record("supernet").get("done", bool, False) else self.supernet_s
        )
        overhead = OVERHEAD if self.allowance.whole else 1.0
        training = (self.left - planned_cpu_s(supernet_s)) / overhead
        if self.allowance.alone:
            return self._plan_alone(training)
        training -= max(0.0, self.allowance.final - max(done)) if done else 0.0
        if self._spec.quality.chosen == "proxy":
            return plan_finals(self.allowance, training)
        least = self._spec.task_settings.metric.least_share
        plan = plan_rungs(self.allowance, training, least_share=least)
        first = plan[0].budget if len(plan) > 1 else 0.0
        return plan_rungs(self.allowance, training - first * max(0, done.count(0.0) - 1), least_share=least)

    def _plan_alone(self, training: float) -> tuple[Rung, ...]:
        """First trainings and the winner's, which gets the rest; after a resumed run's own, the winner's alone."""
        items = [item for item in self._trials.all() if not item.is_reference]
        charges = [charge for item in items if (charge := charge_of(item, self.allowance))]
        if charges:
            last = Rung(budget=training + max(charges), count=1)
            return Rung(budget=min(*charges, last.budget / ETA), count=0), last
        if self._spec.quality.chosen == "proxy":
            return (Rung(budget=training, count=1),)
        known = self._spec.operators
        return plan_alone(
            self.allowance,
            training,
            slope=self._spec.task_settings.law.slope,
            spread=known.spread,
            agreement=known.agreement,
        )


def measuring_s(total_s: float, *, alone: bool = False, by_matrix: bool = False) -> float:
    """CPU seconds reserved for measuring the finalists, or the only one, and for choosing each matrix's format."""
    share = ALONE_MEASURING_SHARE if alone else MEASURING_SHARE
    return MEASURING_S + share * total_s + (task_evaluation.CONTENDERS * CPU_S if by_matrix else 0.0)


def ending_s(total_s: float) -> float:
    """CPU seconds of a budget reserved for test text, explanations and report."""
    return ENDING_S + ENDING_SHARE * total_s


def set_aside_s(allowed: Allowance) -> float:
    """CPU seconds of a budget reserved for measurements and report."""
    return measuring_s(allowed.total, alone=allowed.alone) + ending_s(allowed.total)


def require_budget(spec: RunSpec, *, spent_s: float, ahead_s: float, trainings: int) -> None:
    """Checks that a CPU budget still allows ``trainings`` full trainings.

    Args:
        spec: The run.
        spent_s: CPU seconds already spent.
        ahead_s: Least CPU seconds that the preparation still takes.
        trainings: Least number of full trainings: a candidate's and the reference design's.

    Raises:
        SpecError: The budget is too small; the message says what would be enough.
    """
    if not spec.allowance.whole or _holds(spec, spent_s + ahead_s, trainings):
        return
    enough, larger = spec.allowance.total, spec
    while not _holds(larger, spent_s + ahead_s, trainings):
        enough *= 1.05
        larger = replace(spec, budget=replace(spec.budget, cpu=f"{enough} s"))
    advised = units.show(ROUND_S * math.ceil(enough / ROUND_S), "time")
    final = units.show(_least_final(spec.allowance), "time")
    raise SpecError(
        f"{units.show(spec.allowance.total, 'time')} of CPU time are too little: calibration and preparation take "
        f"{units.show(spent_s + ahead_s, 'time')} or more, measuring and the report "
        f"{units.show(set_aside_s(spec.allowance), 'time')}, and {trainings} trainings of {final} each do not "
        f"fit in the rest; give at least {advised}"
        + (", or lower budget.final" if spec.budget.final is not None else ""),
        field="budget.cpu",
    )


def _holds(spec: RunSpec, before_s: float, trainings: int) -> bool:
    allowed = allowance(spec.budget, spec.train)
    left_s = allowed.total - before_s - set_aside_s(allowed)
    left_s -= planned_cpu_s(spec.quality.shared_s(allowed.total))
    return left_s / OVERHEAD >= trainings * _least_final(allowed)


def _least_final(allowed: Allowance) -> float:
    return allowed.total * LEAST_FINAL if allowed.alone else allowed.final

"""Divides a run's budget between training and the end of the run, plans training, and checks that it suffices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from chipwise.model.arch.design import Design
from chipwise.training.evaluations.data import Task

MEASURING_S, MEASURING_SHARE = 5.0, 0.04  # CPU seconds, plus a share of the budget, for measuring the finalists
ALONE_MEASURING_SHARE = 0.015  # the share if one model is trained: it is the only finalist, in at most two formats
ENDING_S, ENDING_SHARE = 4.0, 0.005  # the same for the end of the run: test text, explanations, report
FINALS_S = 60.0  # CPU seconds for measuring the finalists, if the budget covers only training
ROUND_S = 10.0  # advised budgets are multiples of this


class RunBudget:
    """Computes a run's remaining budget, and plans its training.

    Args:
        spec: The run.
        trials: The trials of the run.
        ledger: CPU seconds that the run has spent, by phase.
    """

    def __init__(self, spec: RunSpec, trials: Trials, ledger: Ledger) -> None:
        self._spec, self._trials, self._ledger = spec, trials, ledger
        self.allowance = spec.allowance  # budget for training
        self._measuring_s = self._reserve_s = 0.0  # parts reserved for the end, if the budget pays for everything

    @property
    def supernet_s(self) -> float:
        """CPU seconds for training the supernet; 0 without a supernet."""
        return self._spec.quality.shared_s(self.allowance.total)

    @property
    def left(self) -> float:
        """The remaining budget for training, in the unit in which training is charged."""
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
        """Reserves CPU time for measuring, tasks and the report, if the budget covers them."""
        if self.allowance.whole:
            total_s, by_matrix = self.allowance.total, chosen_by_matrix(self._spec, target)
            alone = self.allowance.alone
            self._measuring_s = measuring_s(total_s, alone=alone, by_matrix=by_matrix)
            self._reserve_s = self._measuring_s + ending_s(total_s) + task_evaluation.planned_cpu_s(tasks)

    def kept_for(self, forms: Iterable[Design], target: Target | None) -> float:
        """CPU seconds to keep for learned rounding of a design; 0 unless the budget covers everything.

        Args:
            forms: The design in each weight format in which it is predicted to meet the limits. If one of them is wider
                than int4, nothing is kept, because 5 % more training lowers the loss by 0.5 %. Learned rounding lowers
                the loss by 0.3 %, and only in int4 (docs/how-to/export.md).
            target: The run's target.
        """
        learned = self.allowance.whole and all(learns(self._spec, target, form) for form in forms)
        return LEARNED_SHARE * self.allowance.total if learned else 0.0

    def require(self, *, ahead_s: float = 0.0) -> None:
        """Refuses a budget as soon as it is known to be too small, unless a plan or finished training exists.

        Raises:
            SpecError: The budget is too small; calibration results so far are kept.
        """
        if "plan" in self._trials.study.memory or any(item.rungs for item in self._trials.all()):
            return
        compared = any(True for _ in self._spec.task_settings.references(self._spec.space))
        trainings = 2 if compared and not self.allowance.alone else 1
        require_budget(self._spec, spent_s=self._ledger.total_s, ahead_s=ahead_s, trainings=trainings)

    def plan(self, references: Sequence[Candidate]) -> tuple[Rung, ...]:
        """Plans training for the remaining budget; a resumed search gets the same plan.

        After a change of the budget, a new plan is made, in which finished training counts.
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
        """Plans the training of new candidates, after reserving budget for the reference designs.

        Raises:
            SpecError: The remaining budget is too small for one final training run.
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
        """Plans training in a run that trains a single design in full."""
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
    """CPU seconds for measuring the finalists (only one if ``alone``) and, if ``by_matrix``, for choosing formats."""
    share = ALONE_MEASURING_SHARE if alone else MEASURING_SHARE
    return MEASURING_S + share * total_s + (task_evaluation.CONTENDERS * CPU_S if by_matrix else 0.0)


def ending_s(total_s: float) -> float:
    """CPU seconds of the budget ``total_s`` that are reserved for scoring on test text, explanations and the report."""
    return ENDING_S + ENDING_SHARE * total_s


def set_aside_s(allowed: Allowance) -> float:
    """CPU seconds of a budget reserved for measurements and the end of the run."""
    return measuring_s(allowed.total, alone=allowed.alone) + ending_s(allowed.total)


def require_budget(spec: RunSpec, *, spent_s: float, ahead_s: float, trainings: int) -> None:
    """Checks that a CPU budget still allows ``trainings`` full training runs.

    Args:
        spec: The run.
        spent_s: CPU seconds already spent.
        ahead_s: Minimum CPU seconds that the rest of the preparation will take.
        trainings: Number of full training runs that the budget must allow, such as 2 for a candidate and the reference
            design.

    Raises:
        SpecError: The budget is too small; the message says how much would be enough.
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
        f"{units.show(spec.allowance.total, 'time')} of CPU time is too little: calibration and preparation take "
        f"{units.show(spent_s + ahead_s, 'time')} or more, measuring and the report "
        f"{units.show(set_aside_s(spec.allowance), 'time')}, and {trainings} training runs of {final} each do not "
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

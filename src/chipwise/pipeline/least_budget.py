"""Whether a budget of CPU time can hold a search at all, asked before and while it prepares, and what would."""

from __future__ import annotations

import math
from dataclasses import replace

from chipwise.core import units
from chipwise.core.errors import SpecError
from chipwise.pipeline.halving import OVERHEAD
from chipwise.pipeline.supernet_prior import planned_cpu_s
from chipwise.run.budget_spec import allowance
from chipwise.run.spec import RunSpec

MEASURING_S, MEASURING_SHARE = 5.0, 0.04  # CPU seconds and share of the budget for measuring the finalists
ENDING_S, ENDING_SHARE = 4.0, 0.01  # the same for what comes after that: test text, explanations, report
ROUND_S = 10.0  # a budget that is advised is a multiple of it


def set_aside_s(total_s: float) -> float:
    """CPU seconds of a budget that trainings leave to measurements and report."""
    return MEASURING_S + ENDING_S + (MEASURING_SHARE + ENDING_SHARE) * total_s


def require_budget(spec: RunSpec, *, spent_s: float, ahead_s: float, trainings: int) -> None:
    """Checks that a budget of CPU time still holds ``trainings`` in full.

    Args:
        spec: The run.
        spent_s: CPU seconds that are spent.
        ahead_s: What the preparation still takes at least.
        trainings: Full trainings that a search needs at least: a candidate's and the reference design's.

    Raises:
        SpecError: It does not; the message says what would be enough.
    """
    if not spec.allowance.whole or _holds(spec, spent_s + ahead_s, trainings):
        return
    enough, larger = spec.allowance.total, spec
    while not _holds(larger, spent_s + ahead_s, trainings):
        enough *= 1.05
        larger = replace(spec, budget=replace(spec.budget, cpu=f"{enough} s"))
    advised = units.show(ROUND_S * math.ceil(enough / ROUND_S), "time")
    final = units.show(spec.allowance.final, "time")
    raise SpecError(
        f"{units.show(spec.allowance.total, 'time')} of CPU time are too little: calibration and the like take "
        f"{units.show(spent_s + ahead_s, 'time')} or more, measuring and the report "
        f"{units.show(set_aside_s(spec.allowance.total), 'time')}, and {trainings} trainings of {final} each do not "
        f"fit in the rest; give at least {advised}"
        + (", or lower budget.final" if spec.budget.final is not None else ""),
        field="budget.cpu",
    )


def _holds(spec: RunSpec, before_s: float, trainings: int) -> bool:
    allowed = allowance(spec.budget, spec.train)
    left_s = allowed.total - before_s - set_aside_s(allowed.total)
    left_s -= planned_cpu_s(spec.quality.shared_s(allowed.total))
    return left_s / OVERHEAD >= trainings * allowed.final

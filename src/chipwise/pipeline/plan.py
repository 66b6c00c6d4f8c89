"""How a budget of CPU time is spread over trainings: successive halving, planned from the top.

The last rung trains the finalists for the full final budget; each rung below trains about ``ETA`` times as many
candidates for an ``ETA``-th of the time; the first rung takes what is left. A candidate that is promoted goes on from
its checkpoint, so it pays only the difference.

References:
    Successive halving: Jamieson & Talwalkar 2016, arXiv:1502.07943.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.errors import SpecError

ETA = 3.0
SHORTEST_S = 1.0  # below this a training says nothing
DEEPEST = 2  # rungs below the last: a ninth of the budget is the least that tells shapes apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """``count`` candidates trained until each has had ``cpu_s`` seconds in total."""

    cpu_s: float
    count: int


def plan_rungs(*, training_s: float, final_s: float, finalists: int = 2) -> tuple[Rung, ...]:
    """Rungs, shortest first, whose trainings together take about ``training_s`` CPU seconds.

    Raises:
        SpecError: The budget does not even hold one final training.
    """
    _check(training_s, final_s)
    best: tuple[Rung, ...] = (Rung(cpu_s=final_s, count=1),)
    for tops in range(1, finalists + 1):
        for below in range(1, DEEPEST + 1):
            budgets = [final_s / ETA**step for step in range(below, -1, -1)]
            if budgets[0] < SHORTEST_S:
                break
            counts = [max(tops + 1, round(tops * ETA**step / 1.5)) for step in range(below, 0, -1)] + [tops]
            promotions = sum(
                count * (now - before) for count, now, before in zip(counts[1:], budgets[1:], budgets[:-1], strict=True)
            )
            first = int((training_s - promotions) / budgets[0])
            if first > counts[1]:
                best = tuple(
                    Rung(cpu_s=budget, count=count) for budget, count in zip(budgets, [first, *counts[1:]], strict=True)
                )
    return best


def plan_finals(*, training_s: float, final_s: float) -> tuple[Rung, ...]:
    """One rung: as many full trainings as ``training_s`` holds.

    Raises:
        SpecError: The budget does not even hold one final training.
    """
    _check(training_s, final_s)
    return (Rung(cpu_s=final_s, count=int(training_s / final_s)),)


def _check(training_s: float, final_s: float) -> None:
    if training_s < final_s:
        raise SpecError(
            f"after calibration, measuring, tasks and the baseline {max(training_s, 0):.0f} s of CPU time are left, "
            f"less than one final training of {final_s:.0f} s; raise budget.cpu or lower budget.final",
            field="budget",
        )

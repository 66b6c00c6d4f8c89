"""Findings of a finished search: the knee of the front, the cost of each limit, and the importance of choices.

The functions use only the problem, its trials and a surrogate's predictions; they evaluate nothing. Objectives in
arguments and results have the goals' own directions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.algorithms.auto import Auto
from chipwise.design.strategies.history import History, penalised
from chipwise.design.strategies.pareto import hypervolume, knee, non_dominated
from chipwise.design.strategies.strategy import Problem, Rows

_FREED = 1e9  # slack that switches a limit off
_CORNER = 1.1  # distance of the reference point from the front's ideal point, in spans of the front


@dataclass(frozen=True, slots=True, kw_only=True)
class SweetSpot:
    """The knee of the front.

    Attributes:
        trial: Index of the knee among the history's rows.
        kept: How close the knee comes to the front's best value of each objective: 1 if it has the best value on the
            front, 0 if it has the worst.
        why: The same in words, with the gain and loss of moving from the knee to each end of the front.
    """

    trial: int
    kept: dict[str, float]
    why: str


def sweet_spot(history: History) -> SweetSpot | None:
    """Finds the knee among the trials that meet all hard limits; None if their front has no bend.

    Exceeded soft limits are penalised in the first objective.

    The knee is the point of the front farthest from the straight line (with more objectives, the plane) through its
    extremes.
    """
    held = np.flatnonzero(history.feasible)
    counted = history.counted
    front = held[non_dominated(counted[held])] if len(held) else held
    points, first = np.unique(counted[front], axis=0, return_index=True)
    front = front[first]
    best = knee(points)
    if best is None:
        return None
    names = [goal.name for goal in history.problem.goals]
    low, high = points.min(axis=0), points.max(axis=0)
    share = (points - low) / (high - low)
    kept = {name: float(1 - value) for name, value in zip(names, share[best], strict=True)}
    words = "of the improvement from the front's worst to its best value, it reaches " + " and ".join(
        f"{units.show(value, 'share', digits=2)} in {name}" for name, value in kept.items()
    )
    if len(names) == 2:
        words += "; " + "; ".join(_exchanges(points, share, best, names))
    return SweetSpot(trial=int(front[best]), kept=kept, why=words)


def _exchanges(points: Float64Array, share: Float64Array, best: int, names: Sequence[str]) -> list[str]:
    """For two objectives: what moving from the knee to each end of the front gains in one and loses in the other."""
    words = []
    for j, other in ((0, 1), (1, 0)):
        end = int(points[:, j].argmin())
        gained, lost = share[best, j] - share[end, j], share[end, other] - share[best, other]
        if gained > 0:
            words.append(
                f"the other {100 * gained:.0f} % in {names[j]} would cost {100 * lost:.0f} % in {names[other]}"
            )
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """Expected effect of relaxing one limit, according to the quality model.

    Attributes:
        limit: Name of the limit.
        best: Best expected value of each objective with the current limit and with the relaxed limit; the first
            objective includes penalties of soft limits.
        gain: Hypervolume that the relaxation adds to the expected front, as a share of the front's hypervolume; with
            one objective, the relative improvement of its best value.
        row: The design that adds most hypervolume, (d,); None if no design adds any.
        std: Standard deviation of the first expensive objective, predicted for ``row``.
    """

    limit: str
    best: dict[str, tuple[float, float]]
    gain: float
    row: Rows | None
    std: float | None


def relaxations(history: History, *, seed: int, share: float = 0.10) -> list[Relaxation]:
    """Expected effect of relaxing each limit by ``share``, largest effect first.

    Candidates are bred under the current limits, under each relaxed limit, and without soft limits; one quality model
    predicts all of them. Relaxing a hard limit can therefore only add designs, and relaxing a soft limit can only
    reduce penalties.

    Args:
        history: The search's trials; the result is empty if no trial has succeeded.
        seed: Random seed with which candidates are bred.
        share: Relative change of a limit.
    """
    problem = history.problem
    if not len(history) or not problem.limits:
        return []
    judge = _trained(problem, history, np.zeros(len(problem.limits)), seed)
    slack = [np.where(np.arange(len(problem.limits)) == k, share, 0.0) for k in range(len(problem.limits))]
    rows = [judge.candidates()]
    soft = np.array([limit.penalty is not None for limit in problem.limits])
    freed = [np.where(soft, _FREED, 0.0)] if soft.any() else []
    rows += [_trained(problem, history, one, seed).candidates() for one in (*slack, *freed)]
    found = np.unique(np.vstack([*rows, history.rows]), axis=0)
    mean, std, violations = judge.predict(found)
    sign = problem.to_minimise(np.ones(len(problem.goals)))[0]
    held, now = problem.feasible(violations), penalised(mean, problem.penalty(violations))
    found_relaxations = []
    for limit, one in zip(problem.limits, slack, strict=True):
        more, then = problem.feasible(violations - one), penalised(mean, problem.penalty(violations - one))
        gain, adds = _gain(now, held, then, more)
        first = (problem.expensive_goals or [0])[0]
        pairs = zip(_best(now[held]) * sign, _best(then[more]) * sign, strict=True)
        found_relaxations.append(
            Relaxation(
                limit=limit.name,
                best={g.name: (float(a), float(b)) for g, (a, b) in zip(problem.goals, pairs, strict=True)},
                gain=gain,
                row=None if adds is None else found[adds],
                std=None if adds is None else float(std[adds, first]),
            )
        )
    return sorted(found_relaxations, key=lambda item: -item.gain)


def _trained(problem: Problem, history: History, slack: Float64Array, seed: int) -> Auto:
    """The default strategy, trained with all results, for limits that are relaxed by ``slack`` (k,)."""
    if (free := problem.free) is not None:

        def relaxed(rows: Rows) -> tuple[Float64Array, Float64Array]:
            costs, violations = free(rows)
            return costs, np.reshape(np.asarray(violations, float), (len(rows), -1)) - slack[problem.free_limits]

        problem = dataclasses.replace(problem, free=relaxed)
    auto = Auto(problem, seed=seed)
    auto.tell(history.rows, problem.to_minimise(history.objectives), history.violations - slack)
    return auto


def _best(points: Float64Array) -> Float64Array:
    return points.min(axis=0) if len(points) else np.full(points.shape[1], np.nan)


def _gain(
    now: Float64Array, held: NDArray[np.bool_], then: Float64Array, more: NDArray[np.bool_]
) -> tuple[float, int | None]:
    """By how much the hypervolume of ``then[more]`` exceeds that of ``now[held]``, and the row that adds most.

    The first value is relative; with one objective, it is the relative improvement of the best value.
    """
    new = np.flatnonzero(more & (~held | (then != now).any(axis=1)))
    if not len(new):
        return 0.0, None
    if not held.any():
        return float("inf"), int(new[then[new, 0].argmin()])
    if now.shape[1] == 1:
        before, at = float(now[held, 0].min()), int(new[then[new, 0].argmin()])
        better = (before - float(then[at, 0])) / max(abs(before), 1e-300)
        return (better, at) if better > 0 else (0.0, None)
    front = then[more][non_dominated(then[more])]
    low, span = front.min(axis=0), np.ptp(front, axis=0)
    span[span == 0] = 1.0
    corner = np.full(now.shape[1], _CORNER)
    base, relaxed = (now[held] - low) / span, (then - low) / span
    base = base[non_dominated(base)]
    before, after = hypervolume(base, corner), hypervolume(relaxed[more], corner)
    if after <= before:
        return 0.0, None
    added = [hypervolume(np.vstack([base, relaxed[i]]), corner) for i in new]
    return (after / before - 1 if before > 0 else float("inf")), int(new[int(np.argmax(added))])


def importance(
    problem: Problem,
    value: Callable[[Rows], Float64Array],
    *,
    seed: int,
    rows: Rows | None = None,
    count: int = 512,
) -> dict[str, float]:
    """Importance of each choice for a quantity: its total Sobol index, largest first.

    The index of a choice is the share of variance that remains, on average, when all other choices are fixed. Indices
    add up to 1 without interactions, and to more than 1 with interactions. Choices of one kind (``problem.kinds``)
    count as one choice.

    Args:
        problem: The space.
        value: Computes the quantity for rows, (n,): the mean of a quality model, or a cost that needs no trial.
        seed: Random seed of the sampled rows.
        rows: Designs around which the indices are computed. Default: the whole space; only then do the indices have
            their textbook meaning.
        count: Number of sampled rows.

    References:
        Jansen, Analysis of Variance Designs for Model Output, 1999, equation of the total index.
    """
    rng = np.random.default_rng([seed, 9])
    base = problem.draw(count, rng) if rows is None else problem.canonicalise(rows)
    other = problem.draw(len(base), rng)
    here = value(base)
    variance = float(np.concatenate([here, value(other)]).var()) if rows is None else float(here.var())
    kinds = problem.kinds or tuple(f"variable {i}" for i in range(len(problem.cardinalities)))
    found = {}
    for kind in dict.fromkeys(kinds):
        columns = [i for i, name in enumerate(kinds) if name == kind]
        changed = base.copy()
        changed[:, columns] = other[:, columns]
        apart = here - value(problem.canonicalise(changed))
        found[kind] = float((apart**2).mean() / 2 / variance) if variance > 0 else 0.0
    return dict(sorted(found.items(), key=lambda item: -item[1]))

"""Explains a run's result: the knee, the cost of each limit, the most important choices.

Candidates were trained for different times, so all are compared by the quality model's prediction after a full
training. The findings are stored in the study as plain values, from which reports read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.history import History
from chipwise.design.strategies.insights import importance, relaxations, sweet_spot
from chipwise.design.strategies.strategy import Problem
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import Rows, SearchSpace

SHARE = 0.10  # relative change of a relaxed limit
_LEAST = 5  # fewest trained candidates for findings
_IMPORTANCE_ROWS = 256


def explain_answer(
    space: SearchSpace,
    chooser: Chooser,
    observations: Sequence[Observation],
    trained: Sequence[Candidate],
    *,
    references: Sequence[Candidate] = (),
    whole: float | None = None,
    seed: int,
) -> dict[str, object]:
    """The findings as plain values, in the form of :class:`chipwise.design.report.record.Answer`; empty with few
    trainings.

    Args:
        space: The run's space.
        chooser: The run's quality model and problem.
        observations: All finished trainings.
        trained: Candidates of the space with a training, in the order of their trials.
        references: Reference designs that were not trained; what the whole budget would have made of them is expected.
        whole: The whole budget, in the unit of trainings.
        seed: Random seed.
    """
    problem = chooser.problem
    items = [item for item in trained if item.row is not None]
    if len(items) < _LEAST:
        return {}
    rows = np.array([item.row for item in items], np.int64)
    points = _points(chooser, observations, rows)
    history = History(problem)
    history.tell(rows, problem.to_minimise(points))
    place = {tuple(row): item.number for row, item in zip(rows.tolist(), items, strict=True)}
    spot = sweet_spot(history)
    relaxed = [
        {
            "limit": item.limit,
            "share": SHARE,
            "gain": item.gain if math.isfinite(item.gain) else None,
            "best": {name: [_known(a), _known(b)] for name, (a, b) in item.best.items()},
            "std": item.std,
            "summary": None if item.row is None else summary(space.design(item.row)),
        }
        for item in relaxations(history, seed=seed, share=SHARE)
    ]
    trained_goal = problem.goals[problem.expensive_goals[0]].name
    values = {trained_goal: partial(_believed, chooser, observations)}
    values |= {problem.goals[i].name: partial(_priced, problem, k) for k, i in enumerate(problem.free_goals)}
    moved = {name: importance(problem, value, seed=seed, count=_IMPORTANCE_ROWS) for name, value in values.items()}
    number = None if spot is None else place[tuple(history.rows[spot.trial].tolist())]
    return {
        "knee": number,
        "knee_why": None if spot is None else spot.why,
        "knee_expected": None if spot is None else float(history.objectives[spot.trial, problem.expensive_goals[0]]),
        "relaxed": relaxed,
        "importance": moved,
        "alternatives": _alternatives(chooser, observations, references, whole) if whole else [],
    }


def _alternatives(
    chooser: Chooser, observations: Sequence[Observation], references: Sequence[Candidate], whole: float
) -> list[dict[str, object]]:
    """Reference designs trained for the whole budget: expected losses, the least first, from their nearest rows."""
    if not references:
        return []
    rows = np.array([chooser.nearest(item.notes.choices) for item in references], np.int64)
    mean, std = chooser.expected(observations, rows, budget=whole)
    off = np.exp(Z90 * std / mean)
    bounds = np.column_stack([mean, mean / off, mean * off]).tolist()
    return [{"summary": summary(references[i].design), "expected": bounds[i]} for i in np.argsort(mean)]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _believed(chooser: Chooser, observations: Sequence[Observation], rows: Rows) -> Float64Array:
    return chooser.expected(observations, rows)[0]


def _priced(problem: Problem, column: int, rows: Rows) -> Float64Array:
    priced: Float64Array = problem.price(rows)[0][:, column]
    return priced


def _points(chooser: Chooser, observations: Sequence[Observation], rows: Rows) -> Float64Array:
    """Objectives to minimise, (n, m): expected loss after a full training, and predicted costs."""
    problem = chooser.problem
    points = np.zeros((len(rows), len(problem.goals)))
    points[:, problem.expensive_goals] = chooser.expected(observations, rows)[0][:, None]
    points[:, problem.free_goals] = problem.price(rows)[0]
    return points

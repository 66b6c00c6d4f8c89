"""Explains a run's result: the knee of its Pareto front, the cost of each limit, the most important choices.

Candidates were trained for different lengths of time, so the quality model predicts the loss of each after full
training. The findings are stored in the study as plain values, from which reports read them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90, kendall_tau
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.history import History
from chipwise.design.strategies.insights import importance, relaxations, sweet_spot
from chipwise.design.strategies.strategy import Problem
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import Rows, SearchSpace

SHARE = 0.10  # relative change by which each limit is relaxed
_LEAST = 5  # fewest trained candidates for findings
_IMPORTANCE_ROWS = 256


def explain_answer(
    space: SearchSpace,
    chooser: Chooser,
    observations: Sequence[Observation],
    trained: Sequence[Candidate],
    *,
    winner: Candidate | None = None,
    references: Sequence[Candidate] = (),
    whole: float | None = None,
    seed: int,
) -> dict[str, object]:
    """Returns the findings as plain values, with the fields of :class:`chipwise.design.report.record.Answer`.

    If few candidates were trained, the findings leave out the knee of the front, the limits and the choices.

    Args:
        space: The run's space.
        chooser: The run's quality model and problem.
        observations: All finished training runs.
        trained: Candidates of the space that were trained, in the order of their trials.
        winner: The winner. The findings also state which loss was expected of it before any training.
        references: Reference designs that were not trained; their losses after the whole budget are predicted.
        whole: The run's whole budget, in the unit in which training is charged.
        seed: Random seed.
    """
    problem = chooser.problem
    items = [item for item in trained if item.row is not None]
    found: dict[str, object] = {
        "foreseen": None if winner is None else _foreseen(chooser, observations, winner),
        "alternatives": _alternatives(chooser, observations, references, whole) if whole and observations else [],
    }
    if len(items) < _LEAST:
        return found
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
        **found,
    }


def _foreseen(chooser: Chooser, observations: Sequence[Observation], winner: Candidate) -> dict[str, object] | None:
    """Compares the loss expected of the winner before any training with the loss reached; None if it is untrained."""
    own = [item for item in observations if winner.row is not None and tuple(item.row) == tuple(winner.row)]
    if not own:
        return None
    last = max(own, key=lambda item: item.spent)
    (mean,), (std,) = chooser.foreseen(np.array([last.row]), budget=last.spent)
    off = math.exp(Z90 * std / mean)
    first: dict[tuple[int, ...], Observation] = {}
    for item in sorted(observations, key=lambda item: item.spent):
        first.setdefault(tuple(item.row), item)
    tau = None
    if len(first) >= _LEAST:
        told = [float(chooser.foreseen(np.array([item.row]), budget=item.spent)[0][0]) for item in first.values()]
        tau = _known(kendall_tau(np.array(told), np.array([item.loss for item in first.values()])))
    return {
        "expected": [mean, mean / off, mean * off],
        "loss": winner.loss or last.loss,
        "tau": tau,
        "trainings": len(first),
    }


def _alternatives(
    chooser: Chooser, observations: Sequence[Observation], references: Sequence[Candidate], whole: float
) -> list[dict[str, object]]:
    """Reference designs with their expected losses after training for the whole budget, lowest loss first."""
    if not references:
        return []
    rows = np.array([chooser.nearest(item.notes.choices) for item in references], np.int64)
    mean, std = chooser.expected(observations, rows, budget=whole)
    if len(observations) < _LEAST:  # too few for the quality model to know its spread
        std = np.hypot(std, chooser.foreseen(rows, budget=whole)[1])
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
    """Objectives to minimise, (n, m): expected loss after full training, and predicted costs."""
    problem = chooser.problem
    points = np.zeros((len(rows), len(problem.goals)))
    points[:, problem.expensive_goals] = chooser.expected(observations, rows)[0][:, None]
    points[:, problem.free_goals] = problem.price(rows)[0]
    return points

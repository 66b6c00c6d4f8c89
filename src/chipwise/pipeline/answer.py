"""What a finished run can say of its answer: the knee and why, what each limit costs, which choices matter, and what
choosing bought over drawing at random.

Candidates were trained for different times, so all are judged by what the run's own quality model believes of them
after a full training. The findings are kept in the study as plain values; a report reads them from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.optim.history import History, penalised
from chipwise.optim.insights import importance, relaxations, sweet_spot
from chipwise.optim.pareto import hypervolume
from chipwise.optim.strategy import Problem
from chipwise.pipeline.choosing import Chooser, Observation
from chipwise.space import SearchSpace
from chipwise.space.designs import summary
from chipwise.space.search_space import Rows

SHARE = 0.10  # by which limits are relaxed
_LEAST = 5  # trained candidates before anything is said
_SHUFFLES, _DRAWN = 20, 400  # of random candidates, for the growth that drawing would have had
_IMPORTANCE_ROWS = 256


class Known(Protocol):
    """A trained candidate: its trial's number and its row."""

    @property
    def number(self) -> int:
        """Of the trial."""
        ...

    @property
    def row(self) -> list[int] | None:
        """In the space."""
        ...


def explained(
    space: SearchSpace, chooser: Chooser, observations: Sequence[Observation], trained: Sequence[Known], *, seed: int
) -> dict[str, Any]:
    """The findings as plain values, in the form of :class:`chipwise.reporting.record.Answer`; empty with few trainings.

    Args:
        space: The run's space.
        chooser: Its quality model and its problem.
        observations: All finished trainings.
        trained: Candidates of the space that have one, in the order of their trials.
        seed: Of what is drawn.
    """
    problem = chooser.problem
    items = [item for item in trained if item.row is not None]
    if len(items) < _LEAST:
        return {}
    rows = np.array([item.row for item in items], np.int64)
    points = _points(chooser, observations, rows)
    history = History(problem)
    history.tell(rows, problem.to_minimise(points))
    points = penalised(points, chooser.counts(rows) - 1.0)
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
    dear = problem.goals[problem.expensive_goals[0]].name
    values = {dear: partial(_believed, chooser, observations)}
    values |= {problem.goals[i].name: partial(_priced, problem, k) for k, i in enumerate(problem.free_goals)}
    moved = {name: importance(problem, value, seed=seed, count=_IMPORTANCE_ROWS) for name, value in values.items()}
    number = None if spot is None else place[tuple(history.rows[spot.trial].tolist())]
    return {
        "knee": number,
        "knee_why": None if spot is None else spot.why,
        "knee_expected": None if spot is None else float(history.objectives[spot.trial, problem.expensive_goals[0]]),
        "relaxed": relaxed,
        "importance": moved,
        **_growth(chooser, observations, points, seed),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _believed(chooser: Chooser, observations: Sequence[Observation], rows: Rows) -> Float64Array:
    return chooser.expected(observations, rows)[0]


def _priced(problem: Problem, column: int, rows: Rows) -> Float64Array:
    priced: Float64Array = problem.price(rows)[0][:, column]
    return priced


def _points(chooser: Chooser, observations: Sequence[Observation], rows: Rows) -> Float64Array:
    """Objectives to minimise, (n, m): believed after a full training, and as the cost model knows them."""
    problem = chooser.problem
    points = np.zeros((len(rows), len(problem.goals)))
    points[:, problem.expensive_goals] = chooser.expected(observations, rows)[0][:, None]
    points[:, problem.free_goals] = problem.price(rows)[0]
    return points


def _growth(
    chooser: Chooser, observations: Sequence[Observation], points: Float64Array, seed: int
) -> dict[str, list[float]]:
    """Hypervolume after each candidate, and what drawing within the limits would have had on average."""
    rng = np.random.default_rng([seed, 17])
    pool = chooser.pool
    rows = pool[rng.permutation(len(pool))[:_DRAWN]]
    drawn = penalised(_points(chooser, observations, rows), chooser.counts(rows) - 1.0)
    both = np.vstack([points, drawn])
    low, high = both.min(axis=0), both.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    ours, random = (points - low) / span, (drawn - low) / span
    corner = np.full(points.shape[1], 1.1)
    orders = [rng.permutation(len(random)) for _ in range(_SHUFFLES)]
    counts = range(1, len(ours) + 1)
    return {
        "growth": [hypervolume(ours[:n], corner) for n in counts],
        "growth_random": [float(np.mean([hypervolume(random[o[:n]], corner) for o in orders])) for n in counts],
    }

"""Explains a run's result, and evaluates how well early predictions ranked the candidates.

The explanations cover the knee, the cost of each limit, the most important choices, and the gain over random search.
Candidates were trained for different times, so all are compared by the quality model's prediction after a full
training. The findings are stored in the study as plain values, from which reports read them.

The ranking: parameters, FLOPs, the scaling law before anything was trained, supernet scores, the quality model's
predictions and shorter trainings, each against longer trainings. Each table compares with one length of training,
because trainings of different lengths are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import Z90, weighted_kendall_taus
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.report.record import Agreement, Fidelity, Ranking
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.history import History, penalised
from chipwise.design.strategies.insights import importance, relaxations, sweet_spot
from chipwise.design.strategies.pareto import hypervolume
from chipwise.design.strategies.strategy import Problem
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.walk.lower import lower

LEAST_CANDIDATES, LEAST_PAIRS = 5, 8  # fewest candidates for a rank correlation
BAND = 1.05 / 0.95  # largest ratio of two latencies within ± 5 % of a common value
_RESAMPLINGS = 2_000
SHARE = 0.10  # relative change of a relaxed limit
_LEAST = 5  # fewest trained candidates for findings
_SHUFFLES, _DRAWN = 20, 400  # random orders, for the growth under random search
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
    points = penalised(points, chooser.penalty_factor(rows) - 1.0)
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
        **_growth(chooser, observations, points, seed),
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


def _growth(
    chooser: Chooser, observations: Sequence[Observation], points: Float64Array, seed: int
) -> dict[str, list[float]]:
    """Hypervolume after each candidate, and its average under random search within the limits."""
    rng = np.random.default_rng([seed, 17])
    pool = chooser.pool
    rows = pool[rng.permutation(len(pool))[:_DRAWN]]
    drawn = penalised(_points(chooser, observations, rows), chooser.penalty_factor(rows) - 1.0)
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


def rankings(items: Sequence[Candidate], workload: Workload, *, pace: str = "tpot_p50") -> tuple[Ranking, ...]:
    """One table per training length, longest first; empty if too few candidates had it."""
    found = []
    for rung in sorted({one.rung for item in items for one in item.rungs}, reverse=True):
        trained = [item for item in items if item.after(rung) is not None and item.format_of is None]
        cpu_s = float(np.median([one.cpu_s for item in trained if (one := item.after(rung))]))
        if len(trained) < LEAST_CANDIDATES:
            found.append(Ranking(cpu_s=cpu_s, candidates=len(trained)))
            continue
        truth = np.array([_bits(item, rung) for item in trained])
        latency = np.array([item.notes.predicted[pace][0] for item in trained])
        judged = [(name, _column(trained, judge)) for name, judge in _judges(trained, rung, workload).items()]
        fidelities = tuple(
            Fidelity(
                name=name,
                overall=agreement(values, truth),
                equal_latency=agreement(values, truth, pairs=equal(latency)),
            )
            for name, values in judged
            if np.isfinite(values).sum() >= 2
        )
        found.append(Ranking(cpu_s=cpu_s, candidates=len(trained), fidelities=fidelities))
    return tuple(found)


def agreement(judged: ArrayLike, truth: ArrayLike, *, pairs: NDArray[np.bool_] | None = None) -> Agreement:
    """Kendall's τ-b between two columns, with the 95 % interval over resampled candidates.

    Args:
        evaluated: Scores of a predictor, lower is better; NaN if a candidate has none, (n,).
        truth: Results of longer trainings, lower is better, (n,).
        pairs: Which pairs count, (n, n). Default: all.

    References:
        τ-b: Kendall 1945, Biometrika 33:239. The interval: percentiles of the bootstrap, Efron 1979.
    """
    x, y = np.asarray(judged, float), np.asarray(truth, float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    count = len(x)
    wanted = np.ones((count, count), bool) if pairs is None else np.asarray(pairs)[np.ix_(keep, keep)]
    wanted = wanted & ~np.eye(count, dtype=bool)
    number = int(wanted.sum()) // 2
    if count < LEAST_CANDIDATES or number < LEAST_PAIRS:
        return Agreement(candidates=count, pairs=number)
    value = float(weighted_kendall_taus(x, y, np.ones((1, count)), pairs=wanted)[0])
    if not np.isfinite(value):
        return Agreement(candidates=count, pairs=number)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLINGS).astype(float)
    low, high = np.nanpercentile(weighted_kendall_taus(x, y, drawn, pairs=wanted), [2.5, 97.5])
    return Agreement(candidates=count, pairs=number, tau=value, low=float(low), high=float(high))


def equal(latency_s: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the pairs that lie within 5 % of one value, (n, n)."""
    values = np.asarray(latency_s, float)
    ratio = values[:, None] / values
    return np.asarray(np.maximum(ratio, 1 / ratio) <= BAND)


Judge = Callable[[Candidate], float | None]


def _judges(trained: Sequence[Candidate], rung: int, workload: Workload) -> Mapping[str, Judge]:
    """Predictions for candidates from before their training of ``rung``; lower is better."""
    judges: dict[str, Judge] = {
        "parameters": lambda item: -float(item.design.arch.parameters()),
        "FLOPs of a prompt": lambda item: -_flops(item, workload),
        "scaling law, before any training": lambda item: item.notes.law,
        "supernet": lambda item: item.notes.supernet,
    }
    for shorter in range(rung):
        lengths = [one.cpu_s for item in trained if (one := item.after(shorter)) is not None]
        if lengths:
            name = f"training of {float(np.median(lengths)):.0f} s"
            judges[name] = lambda item, shorter=shorter: _bits(item, shorter)  # type: ignore[misc]
    judges["quality model's prediction before it"] = lambda item: _belief(item, rung)
    return judges


def _column(items: Sequence[Candidate], judge: Judge) -> Float64Array:
    values = [judge(item) for item in items]
    return np.array([np.nan if value is None else value for value in values])


def _bits(item: Candidate, rung: int) -> float | None:
    result = item.after(rung)
    return None if result is None else result.quantised_loss


def _belief(item: Candidate, rung: int) -> float | None:
    held = item.notes.believed.get(str(rung))
    return None if held is None else float(held[0])


def _flops(item: Candidate, workload: Workload) -> float:
    return float(sum(placed.op.work().flops for placed in lower(item.design, workload, Phase.PREFILL)))

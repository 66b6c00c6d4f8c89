"""Chooses the next candidates to train, by an acquisition function on the quality model's posterior.

Latency is cheap to predict, quality is expensive to measure, so the only learnt quantity is bits per byte, including
penalties of soft limits. A scaling law, fitted to the run's own trainings, extrapolates short ones to the full budget;
the quality model learns by how much each shape differs from it. The first batch covers the pool (one design alone is
the most promising); later ones alternate between the candidate with the highest expected improvement and those that add
most to the front. Times matter only as objectives or limits: the quality model uses choices and counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.rows import distinct_rows
from chipwise.design.limits import Constraint, Objective, is_cost, relative_excess
from chipwise.design.phases.limits import CLEARLY
from chipwise.design.phases.other_devices import ACROSS
from chipwise.design.phases.screening import Metrics, Screened, excess, mutate
from chipwise.design.phases.supernet_prior import SupernetPrior
from chipwise.design.strategies.acquisition import expected_improvement, most_informative
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.quality_model import QualityModel
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.model.kinds.denoiser.denoiser import UNGUIDED
from chipwise.model.kinds.image.choices import GUIDANCE, SHIFT, SOLVER
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.training.laws.operators import NOTHING_KNOWN, Operator, OperatorPrior
from chipwise.training.laws.scaling import PACE, START, Law, Pace, fit_law, fit_pace

DRAWN = ("steps", SOLVER, SHIFT, GUIDANCE)  # choices of image generation
SERVED = ("weights", *DRAWN)  # choices that need no training of their own
LOSS = "loss"  # name of the task's loss among a problem's goals
SIZES = ("d_model", "depth", "vocab_size", "patch")  # choices that identify clearly different candidates
LEAST_LOSS = 1e-4  # smallest loss used, so that logarithms are finite
POOL = 4_000
ALIKE = (0.8, 1.25)  # width, depth and so on, relative to the reference design's, of designs for one long training
KEPT = ("vocab_size", "patch")  # choices that conventional designs of other sizes share with the reference design
SMALLEST = 0.7  # least share of the reference design's parameters
AS_MANY = (0.7, 1.4)  # the same for parameters
FEWEST_ALIKE = 5  # designs around the reference design without which the whole pool stays
FEWEST = 3  # trainings of earlier runs from which the quality model is used
PARENTS, CHILDREN = 6, 150
HOPEFUL = 4  # the first batch is chosen from the best 1/HOPEFUL of the pool, by the scaling law


@dataclass(frozen=True)
class Observation:
    """One finished training: the candidate's row, its share of the budget, its tokens and bits per byte."""

    row: Sequence[int]
    spent: float  # in the unit of the budget: device seconds or tokens
    tokens: int
    loss: float


@dataclass(frozen=True)
class Belief:
    """Posterior of candidates after a full training, for log losses including penalties of soft limits.

    Logarithms are used because the quality model's errors are relative. With normal errors on losses, uncertain
    candidates with a high mean could have negative losses.

    Attributes:
        mean: Means, (n,).
        std: Standard deviations, (n,).
        covariance: ``index (c,) -> (c, c)``; its diagonal is the square of ``std``.
        front: Objectives of the trained candidates, minimised, (k, m): log loss, then costs.
    """

    mean: Float64Array
    std: Float64Array
    covariance: Callable[[NDArray[np.int64]], Float64Array]
    front: Float64Array


def make_problem(
    space: SearchSpace, metrics: Metrics, goals: tuple[Objective, ...], limits: tuple[Constraint, ...]
) -> Problem:
    """The search as a problem for strategies: only trainings reveal the task's loss; costs are predicted."""
    trained = next((goal.metric for goal in goals if not is_cost(goal.metric)), LOSS)
    free_goals = [goal for goal in goals if is_cost(goal.metric)]
    free_limits = [limit for limit in limits if is_cost(limit.metric)]

    def free(rows: Rows) -> tuple[Float64Array, Float64Array]:
        known = metrics(rows)
        costs = [known.get(f"{ACROSS}{goal.metric}", known[goal.metric]) for goal in free_goals]
        over = [relative_excess(limit, known[limit.metric]) for limit in free_limits]
        return _columns(costs, len(rows)), _columns(over, len(rows))

    return Problem(
        cardinalities=space.cardinalities,
        goals=(
            Goal(name=trained),
            *(Goal(name=goal.metric, direction=goal.direction, free=True) for goal in free_goals),
        ),
        limits=tuple(Limit(name=limit.metric, free=True, penalty=limit.penalty) for limit in free_limits),
        free=free,
        active=space.active,
        canonical=space.canonical,
        kinds=tuple(gene.name for gene in space.genes),
        sample=space.sample,
    )


def _columns(parts: list[Float64Array], count: int) -> Float64Array:
    return np.stack(parts, axis=1) if parts else np.zeros((count, 0))


class Chooser:
    """Chooses candidates from a screened pool as trainings come in. Deterministic given seed and observations.

    Args:
        space: The space.
        screened: The candidates within the limits.
        metrics: Free metrics of rows.
        goals: The objectives.
        limits: The constraints.
        final: Budget of a full training.
        in_tokens: Whether it is in tokens instead of seconds.
        bytes_per_token: Bytes of training data per position for the designs of rows, (n,).
        unique_bytes: Bytes of the training data; what a training reads beyond them are further passes.
        law: Prior law of the loss by size and data.
        operators: What is known of operators.
        pace: How fast trainings are, before any of this run.
        past: Rows, tokens and losses of trainings of earlier runs with the same data.
        seed: Random seed.
    """

    _like: Rows | None = None  # (1, genes): the design that proposed ones are about as large as

    def __init__(
        self,
        space: SearchSpace,
        screened: Screened,
        metrics: Metrics,
        goals: tuple[Objective, ...],
        limits: tuple[Constraint, ...],
        *,
        final: float,
        in_tokens: bool = False,
        bytes_per_token: Callable[[Rows], Float64Array],
        unique_bytes: float = math.inf,
        law: Law = START,
        operators: OperatorPrior = NOTHING_KNOWN,
        pace: Pace = PACE,
        past: Sequence[tuple[Sequence[int], int, float]] = (),
        seed: int,
    ) -> None:
        self._space, self._metrics, self._limits, self._seed = space, metrics, limits, seed
        self._final, self._in_tokens = final, in_tokens
        self._bytes_per_token, self._unique_bytes = bytes_per_token, unique_bytes
        self._start, self._operators, self._pace = law, operators, pace
        self.problem = make_problem(space, metrics, goals, limits)
        self._counted = self._counted_problem()
        rng = np.random.default_rng([seed, 7])
        rows = screened.rows[excess(limits, screened.metrics) <= 0]
        rows = rows if len(rows) else screened.rows
        chosen = rng.permutation(len(rows))[:POOL]
        self.pool = rows[np.sort(chosen)]
        self._encoder = Encoder(self._counted, seed=seed)
        self._model = self._fresh()
        self._fitted_on: list[Observation] = []  # observations that the model was fitted to
        self._prior: SupernetPrior | None = None
        self._past = [self._as_here(*one) for one in past]

    def _as_here(self, row: Sequence[int], tokens: int, loss: float) -> Observation:
        """A training of an earlier run, perhaps on another machine, with what it would spend in this run."""
        rows = np.array([row], np.int64)
        spent = float(tokens) / (self._full_tokens(rows, self._pace, 1.0)[0])
        return Observation(row=row, spent=spent, tokens=tokens, loss=loss)

    def stay_around(
        self,
        references: Sequence[Mapping[str, object]],
        conventional: Iterable[Mapping[str, object]] = (),
        *,
        traded: tuple[str, float] | None = None,
    ) -> None:
        """Proposes only one conventional design and designs of about its size that differ from it in few choices.

        Short trainings favour small designs that lose when they are trained for long, and the law cannot correct that
        over two orders of magnitude. What they do tell is which operators pay at one size. The size is that of the most
        promising reference design, the largest within the limits, or the one down to ``SMALLEST`` of it that the law
        finds best after the long training; or, where time per answer counts, the fastest of those that it finds about
        as good. A choice of layers changes in all of them at once.

        Args:
            references: The run's reference designs.
            conventional: Designs of usual proportions, of other sizes too.
            traded: A predicted time, and by how much the ln loss of a clearly faster size may be higher.
        """
        if not references:
            return
        largest = min(references, key=self.law_of)
        alike = [one for one in conventional if all(one.get(name) == largest.get(name) for name in ("weights", *KEPT))]
        sizes = distinct_rows(np.array([self.nearest(one) for one in (largest, *alike)], np.int64))[0]
        priced = self._metrics(sizes)
        count, most = priced["parameters"], self._metrics(np.array([self.nearest(largest)]))["parameters"]
        kept = (excess(self._limits, priced) <= 0) & (count <= most)
        sizes = sizes[kept & (count >= SMALLEST * count[kept].max(initial=0.0))]
        if not len(sizes):
            return
        row = sizes[self._fastest_as_good(sizes, traded)][None]
        once = self._changed(row)
        rows = distinct_rows(np.vstack([row, once, self._changed(once)]))[0]
        self._like = row
        near = self._kept(rows)
        if len(near) < FEWEST_ALIKE:  # limits leave hardly any of that size
            self._like = None
            return
        self.pool = near[np.lexsort((self._differences(near, row), self._worth(near)))]

    def _fastest_as_good(self, rows: Rows, traded: tuple[str, float] | None) -> int:
        """Index of the best row by the law, or of a clearly faster one that is about as good."""
        loss = self.law(rows)
        best = int(np.argmin(loss))
        if traded is None:
            return best
        latency, more = traded
        seconds = self._metrics(rows)[latency]
        good = np.flatnonzero(loss <= loss[best] * math.exp(more))
        fastest = int(good[np.argmin(seconds[good])])
        return fastest if seconds[fastest] <= CLEARLY * seconds[best] else best

    def _differences(self, rows: Rows, row: Rows) -> NDArray[np.int64]:
        """Number of choices in which each of ``rows`` differs from ``row``; a choice of layers counts once, (n,)."""
        parts = [(rows[:, columns] != row[:, columns]).any(axis=1) for columns in self._space.columns.values()]
        return np.asarray(np.sum(parts, axis=0), np.int64)

    def _changed(self, rows: Rows) -> Rows:
        """All rows that differ from one of ``rows`` in one choice; the format and how a model is served stay."""
        found, active = [rows[:0]], self._space.active(rows)
        rows = rows.copy()
        for columns in self._space.columns.values():  # what a deeper row would read is like the first layer
            rows[:, columns] = np.where(active[:, columns], rows[:, columns], rows[:, columns[:1]])
        for name, columns in self._space.columns.items():
            if name not in SERVED:
                for value in range(self._space.cardinalities[columns[0]]):
                    other = rows.copy()
                    other[:, columns] = value
                    found.append(other)
        return distinct_rows(self._space.canonical(np.vstack(found)))[0]

    def _kept(self, rows: Rows) -> Rows:
        """Those of ``rows`` that are within the limits and, where the run stays around a design, about as large."""
        kept = excess(self._limits, self._metrics(rows)) <= 0
        if self._like is not None:
            kept &= self._alike(rows, self._like)
        return rows[kept]

    def _alike(self, rows: Rows, row: Rows) -> NDArray[np.bool_]:
        """Which rows have about the sizes of ``row``, (1, genes)."""
        kept = np.ones(len(rows), bool)
        for name in SIZES:
            if name in self._space.index:
                own, theirs = (np.asarray(self._space.values(each, name), float) for each in (rows, row))
                kept &= (ALIKE[0] * theirs <= own) & (own <= ALIKE[1] * theirs)
        own, theirs = (self._metrics(each)["parameters"] for each in (rows, row))
        return kept & (AS_MANY[0] * theirs <= own) & (own <= AS_MANY[1] * theirs)

    def set_supernet_prior(self, rows: Rows, scores: Float64Array) -> None:
        """Sets the supernet prior from ``scores`` of ``rows`` in bits per byte; see :class:`SupernetPrior`."""
        residuals = np.log(scores / self.law(rows))
        self._prior = SupernetPrior(self._counted, self._encoder, rows, residuals, seed=self._seed)
        self._fitted_on = []

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows outside ``taken``; fewer when the pool is exhausted."""
        if self._like is not None and not taken:
            first = self._first(observations)
            return np.vstack([first, self.next(count - 1, observations, first.tolist())]) if count > 1 else first
        rng = np.random.default_rng([self._seed, len(taken)])
        pool = self._candidates(observations, taken, rng)
        if len(pool) <= count:
            return pool
        if len(observations) < 3:
            if self._like is not None:
                return self._with_other_operators(pool, np.array(taken, np.int64), count)
            pool = self._most_promising(pool, observations, max(count, len(pool) // HOPEFUL))
            if count == 1:
                return pool[:1]
            columns = self._model.columns(pool)
            held = self._model.columns(np.array(taken)) if taken else columns[:0]
            return pool[_spread(columns, held, count)]
        belief = self.belief(observations, pool)
        improvement = expected_improvement(belief.mean, belief.std, np.asarray(belief.front[:, 0].min()))
        order = list(np.argsort(-improvement, kind="stable"))
        costs, _ = self.problem.price(pool)
        together = most_informative(
            np.column_stack([belief.mean, costs]),
            np.column_stack([belief.std, np.zeros_like(costs)]),
            lambda index, _: belief.covariance(index),
            belief.front,
            count,
        )
        return pool[self._in_turns(pool, (order, list(together)), count)]

    def _first(self, observations: Sequence[Observation]) -> Rows:
        """The design that a run around one size begins with, (1, genes)."""
        if len(self._past) < FEWEST:
            return self.pool[:1]
        pool = self._candidates(observations, (), np.random.default_rng(self._seed))
        return self._most_promising(pool, observations, 1)

    def _most_promising(self, pool: Rows, observations: Sequence[Observation], count: int) -> Rows:
        """The first ``count`` rows of ``pool`` by their loss after a full training, before trainings of this run.

        With ``FEWEST`` trainings of earlier runs the quality model counts, otherwise the law and the supernet alone.
        """
        if len(self._past) < FEWEST:
            loss = self._law(observations)(pool) * np.exp(self._trend([])(pool))
        else:
            loss = self.expected(observations, pool)[0]
        return pool[np.argsort(loss * self.penalty_factor(pool), kind="stable")[:count]]

    def _with_other_operators(self, pool: Rows, taken: Rows, count: int) -> Rows:
        """``count`` rows that try as many operators as possible that ``taken`` lacks; ties in the order of the pool.

        Operators are choices by name, such as an activation or where convolutions are; sizes are numbers.
        """
        names = [name for name, columns in self._space.columns.items() if name not in SERVED and self._by_name(columns)]
        columns = [int(self._space.columns[name][0]) for name in names]
        tried, picks = {(column, value) for column in columns for value in taken[:, column].tolist()}, []
        for _ in range(count):
            fresh = [sum((column, row[column]) not in tried for column in columns) for row in pool.tolist()]
            pick = max((i for i in range(len(pool)) if i not in picks), key=lambda i: (fresh[i], -i))
            tried |= {(column, int(pool[pick, column])) for column in columns}
            picks.append(pick)
        return pool[picks]

    def _by_name(self, columns: NDArray[np.int64]) -> bool:
        return isinstance(self._space.genes[columns[0]].values[0], str | bool)

    def _in_turns(self, pool: Rows, orders: Sequence[Sequence[int]], count: int) -> list[int]:
        """Takes candidates from several rankings in turn, one per size (width, depth, vocabulary) while possible.

        In a run that stays around one size, sizes need not differ.
        """
        shape = pool[:, [self._space.index[name] for name in SIZES if name in self._space.index]].tolist()
        picks: list[int] = []
        for apart in (True, False) if self._like is None else (False,):
            for turn in range(2 * count):
                taken = [shape[i] for i in picks]
                left = (int(i) for i in orders[turn % len(orders)] if int(i) not in picks)
                fresh = next((i for i in left if not apart or shape[i] not in taken), None)
                if fresh is not None and len(picks) < count:
                    picks.append(fresh)
        return picks

    def propose_by_law(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """Up to ``count`` rows outside ``taken`` with the best losses by the law; at first one per shape.

        ``observations`` are ignored: this is for runs without trainings before the final ones.
        """
        gone = {self._architecture(row) for row in taken}
        pool = self.pool[[i for i, row in enumerate(self.pool.tolist()) if self._architecture(row) not in gone]]
        order = [int(i) for i in np.argsort(self.law(pool) * self.penalty_factor(pool), kind="stable")]
        return pool[self._in_turns(pool, (order,), count)]

    def nearest(self, choices: Mapping[str, object]) -> list[int]:
        """The row of the space that is closest to a reference design."""
        return [int(i) for i in self._space.nearest(choices)]

    def in_other_formats(self, row: Sequence[int], names: Sequence[str] = SERVED) -> Rows:
        """Variants of ``row`` in other weight formats, steps, solvers and guidance predicted within the limits.

        All of them share one training. ``names`` are the choices that may differ.
        """
        columns = [self._space.index[name] for name in names if name in self._space.index]
        values = np.array(list(itertools.product(*(range(self._space.cardinalities[column]) for column in columns))))
        rows = np.repeat(np.array([row], dtype=np.int64), len(values), axis=0)
        rows[:, columns] = values
        rows = distinct_rows(self._space.canonical(rows))[0]
        kept = [other.tolist() != list(row) and self._architecture(other) == self._architecture(row) for other in rows]
        rows = np.asarray(rows[kept], dtype=np.int64)
        return rows[excess(self._limits, self._metrics(rows)) <= 0] if len(rows) else rows

    def better_served(self, row: Sequence[int]) -> float:
        """Factor (at most 1) on the loss of ``row`` if it uses its best number of steps, by the law.

        It uses only the law, since the minimum of several noisy predictions would favour the most uncertain one.
        """
        if not self._start.one_pass:
            return 1.0
        forms = np.vstack([np.array([row], dtype=np.int64), self.in_other_formats(row)])
        factors = self._start.of_passes(self._space.equal_steps(forms))
        return float(factors.min() / factors[0])

    def penalty_factor(self, rows: Rows) -> Float64Array:
        """Factor on bits per byte of ``rows``, (n,): 1, or more where soft limits are exceeded."""
        return 1.0 + self.problem.penalty(self.problem.price(rows)[1])

    def law(self, rows: Rows, *, budget: float | None = None) -> Float64Array:
        """Bits per byte of ``rows`` by the scaling law, before this run trained anything, (n,).

        ``budget`` is the length of the training, a full one unless given.
        """
        return self._law([])(rows, budget=budget)

    def law_of(self, choices: Mapping[str, object]) -> float:
        """Like :meth:`law` for a reference design, using the closest row."""
        return float(self.law(np.array([self.nearest(choices)]))[0])

    def spread(self, trained: int, scored: int) -> tuple[Rows, Rows]:
        """Rows for training a supernet, and the rows that it scores.

        The former are sampled from the pool; half of the latter are those that the law ranks best.
        """
        rng = np.random.default_rng([self._seed, 19])
        rows = self.pool[np.sort(rng.permutation(len(self.pool))[:trained])]
        order = np.argsort(self.law(rows), kind="stable")
        best, rest = order[: scored // 2], rng.permutation(order[scored // 2 :])
        return rows, rows[np.concatenate([best, rest[: scored - len(best)]])]

    def expected(
        self, observations: Sequence[Observation], rows: Rows, *, budget: float | None = None
    ) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of bits per byte of ``rows`` after a final training, or one of ``budget``."""
        law, trend = self._learn(observations)
        mean, std = self._model.predict(rows)
        loss = np.exp(mean + trend(rows)) * law(rows, budget=budget)
        return loss, loss * std

    def foreseen(self, rows: Rows, *, budget: float) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of the loss of ``rows`` that were expected before this run trained anything."""
        if len(self._past) >= FEWEST:
            return self.expected([], rows, budget=budget)
        loss = self.law(rows, budget=budget)
        return loss, loss * self._operators.spread

    def belief(self, observations: Sequence[Observation], rows: Rows) -> Belief:
        """The posterior of ``rows`` for the acquisition function; see :class:`Belief`."""
        law, trend = self._learn(observations)
        columns = self._model.columns(rows)
        mean, std = self._model.predict_columns(columns)
        tried = np.unique(np.array([item.row for item in observations]), axis=0)
        known, _ = self._model.predict(tried)

        def quality(residual: Float64Array, of: Rows) -> Float64Array:
            return np.asarray(residual + trend(of) + np.log(law(of) * self.penalty_factor(of)))

        costs, _ = self.problem.price(tried)
        return Belief(
            mean=quality(mean, rows),
            std=std,
            covariance=lambda index: self._model.covariance(columns[index]),
            front=np.column_stack([quality(known, tried), costs]),
        )

    def _learn(
        self, observations: Sequence[Observation]
    ) -> tuple[Callable[..., Float64Array], Callable[[Rows], Float64Array]]:
        """Fits scaling law and quality model to all trainings; returns the law and the supernet's trend."""
        law = self._law(observations)
        observations = [*self._past, *observations]
        seen = np.array([item.row for item in observations])
        expected = law(seen, np.array([item.tokens for item in observations], float))
        share = [min(1.0, item.spent / self._final) for item in observations]
        residuals = np.log(self._losses(observations) / expected)
        trend = self._trend(seen, residuals)
        if self._fitted_on != list(observations):
            self._model = self._fresh()
            self._model.fit(seen, residuals - trend(seen), fidelity=share)
            self._fitted_on = list(observations)
        return law, trend

    def _trend(
        self, seen: Rows | Sequence[tuple[int, ...]], residuals: Sequence[float] | Float64Array = ()
    ) -> Callable[[Rows], Float64Array]:
        """The supernet prior of rows multiplied by the trust in it; 0 without a supernet."""
        prior = self._prior
        if prior is None:
            return lambda rows: np.zeros(len(rows))
        trust = prior.trust(np.asarray(seen, np.int64), residuals)
        return lambda rows: trust * prior(rows)

    def _fresh(self) -> QualityModel:
        """A model without earlier fits, so that a resumed search gets the same posterior."""
        return QualityModel(self._counted, seed=self._seed, encoder=self._encoder)

    def _counted_problem(self) -> Problem:
        """Features of the quality model: choices and parameter counts, without times.

        Predicted times are left out because they vary with measurements from day to day, and quality does not depend on
        them.
        """

        def free(rows: Rows) -> tuple[Float64Array, Float64Array]:
            return np.stack(self._sizes(rows), axis=1), np.zeros((len(rows), 0))

        goals = (Goal(name=LOSS), Goal(name="layers", free=True), Goal(name="head", free=True))
        return replace(self.problem, goals=goals, limits=(), free=free)

    def _law(self, observations: Sequence[Observation]) -> Callable[..., Float64Array]:
        """The scaling law fitted to all trainings, as bits per byte of rows after some tokens or a full training."""
        pace = self._fitted_pace(observations)
        observations = [*self._past, *observations]
        seen, tokens = self._seen(observations)
        layers, head = self._sizes(seen)
        losses = self._losses(observations) / self._factor(seen, tokens)
        law = fit_law(layers, head, self._read(seen, tokens), losses, start=self._start)

        def loss(rows: Rows, tokens: Float64Array | None = None, *, budget: float | None = None) -> Float64Array:
            layers, head = self._sizes(rows)
            if tokens is None:
                tokens = self._full_tokens(rows, pace, budget)
            return law.loss(layers, head, self._read(rows, tokens)) * self._factor(rows, tokens)

        return loss

    def _read(self, rows: Rows, tokens: Float64Array) -> Float64Array:
        """Bytes of new text that ``tokens`` are worth to designs of ``rows``, (n,)."""
        return self._start.fresh(tokens * self._bytes_per_token(rows), self._unique_bytes)

    def _seen(self, observations: Sequence[Observation]) -> tuple[Rows, Float64Array]:
        """Rows, (n, genes), and tokens, (n,), of trainings."""
        rows = np.array([item.row for item in observations], dtype=np.int64).reshape(-1, len(self._space.genes))
        return rows, np.array([item.tokens for item in observations], float)

    def _fitted_pace(self, observations: Sequence[Observation]) -> Pace:
        """How fast the trainings of this run are."""
        if not observations:
            return self._pace
        seen, tokens = self._seen(observations)
        spent = np.array([item.spent for item in observations]) / self._slower(seen)
        return fit_pace(*self._sizes(seen), tokens / spent)

    def _factor(self, rows: Rows, tokens: Float64Array) -> Float64Array:
        """Factor on the law's loss for the sampling steps and operators of ``rows`` after ``tokens``, (n,)."""
        return self._start.of_passes(self._space.equal_steps(rows)) * np.exp(self._change(rows, tokens))

    def _change(self, rows: Rows, tokens: Float64Array) -> Float64Array:
        """Change of the ln loss after ``tokens`` by the operators of ``rows``, (n,)."""
        total = np.zeros(len(rows))
        for share, operator in self._known_operators(rows):
            points, changes = np.log(list(operator.loss)), list(operator.loss.values())
            total += share * np.interp(np.log(tokens), points, changes)
        return total

    def _slower(self, rows: Rows) -> Float64Array:
        """Factor on the seconds per training token for the operators of ``rows``, (n,)."""
        slower = self._pace.layer_parameter_s / PACE.layer_parameter_s  # what matrix products take, not convolutions
        parts = [share * operator.seconds / max(1.0, slower) for share, operator in self._known_operators(rows)]
        return np.asarray(np.exp(np.sum([np.zeros(len(rows)), *parts], axis=0)))

    def _known_operators(self, rows: Rows) -> Iterator[tuple[Float64Array, Operator]]:
        """Each operator of the prior with the share of the layers of ``rows`` that have it, (n,)."""
        active, single = self._space.active(rows), self._space.values(rows, "depth") == 1
        for name in self._operators.operators.keys() & self._space.columns.keys():
            columns = self._space.columns[name]
            values = [str(value) for value in self._space.genes[columns[0]].values]
            for value, operator in self._operators.operators[name].items():
                if value in values:
                    has = (rows[:, columns] == values.index(value)) & active[:, columns]
                    share = has.sum(axis=1) / active[:, columns].sum(axis=1)
                    yield share * ~single, operator
                    yield share * single, operator.one_layer or operator

    def _worth(self, rows: Rows) -> Float64Array:
        """Change of the ln loss after a full training by the operators of ``rows``, (n,): slower ones read less."""
        change = self._change(rows, self._full_tokens(rows, self._pace))
        return change if self._in_tokens else change + self._start.slope * np.log2(self._slower(rows))

    def _full_tokens(self, rows: Rows, pace: Pace, budget: float | None = None) -> Float64Array:
        """Tokens of a training of ``budget``, or of a full one, at a pace, (n,)."""
        amount = np.full(len(rows), budget or self._final)
        return amount if self._in_tokens else amount * pace.tokens_per_s(*self._sizes(rows)) / self._slower(rows)

    def _sizes(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Parameters of the layers and of the head, each (n,)."""
        head = (self._space.outputs(rows) * self._space.values(rows, "d_model")).astype(float)
        tables = np.where(self._space.values(rows, "tie_embeddings"), 1.0, 2.0)
        return np.maximum(self._metrics(rows)["parameters"] - tables * head, 1.0), head

    @staticmethod
    def _losses(observations: Sequence[Observation]) -> Float64Array:
        """Losses, (n,), bounded below so that logarithms exist."""
        return np.maximum([item.loss for item in observations], LEAST_LOSS)

    def _candidates(
        self, observations: Sequence[Observation], taken: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> Rows:
        """The pool and children of the best so far, without taken rows."""
        rows, observations = self.pool, [*self._past, *observations]
        if observations:
            seen = np.array([item.row for item in observations])
            counted = self.penalty_factor(seen) * [item.loss for item in observations]
            best = np.lexsort((counted, np.array([-item.spent for item in observations])))[:PARENTS]
            parents = np.unique(seen[best], axis=0)
            if self._like is None:
                children = distinct_rows(mutate(self._space, np.repeat(parents, CHILDREN, axis=0), rng))[0]
            else:
                children = self._changed(parents)
            rows = distinct_rows(np.vstack([rows, self._kept(children)]))[0]
        gone = {self._architecture(row) for row in taken}
        kept = [i for i, row in enumerate(rows.tolist()) if self._architecture(row) not in gone]
        return rows[kept]

    def _architecture(self, row: Sequence[int]) -> tuple[int, ...]:
        """Key of a row without its weight format, steps, solver and guidance, so that each training has one trial.

        Guidance counts only as present or absent: guided models are also trained without labels.
        """
        key = [int(value) for value in row]
        for name in SERVED:
            column = self._space.index.get(name)
            if column is not None:
                guided = name == GUIDANCE and self._space.genes[column].values[key[column]] != UNGUIDED
                key[column] = int(guided)
        return tuple(key)


def _spread(columns: Float64Array, held: Float64Array, count: int) -> NDArray[np.int64]:
    """``count`` points far from each other and from ``held``: each is the farthest from all previous ones."""
    scale = columns.std(axis=0)
    points, before = columns[:, scale > 0] / scale[scale > 0], held[:, scale > 0] / scale[scale > 0]
    centre = points.mean(axis=0)
    picks: list[int] = []
    distance = np.full(len(points), np.inf)
    for point in before:
        distance = np.minimum(distance, ((points - point) ** 2).sum(axis=1))
    while len(picks) < count:
        typical = not picks and not len(before)
        pick = int(np.argmin(((points - centre) ** 2).sum(axis=1)) if typical else np.argmax(distance))
        picks.append(pick)
        distance = np.minimum(distance, ((points - points[pick]) ** 2).sum(axis=1))
    return np.array(picks)

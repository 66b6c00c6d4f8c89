"""Chooses the next candidates to train, by an acquisition function on the quality model's posterior.

Latency is cheap to predict and quality is expensive to measure, so a model is learnt only for bits per byte. Penalties
of soft limits are applied to its predictions. A scaling law is fitted to this search's training runs and extrapolates
short runs to the full budget; the quality model learns by how much each design's loss differs from the law. The first
batch is spread over the pool; if only one design is requested, the most promising one is chosen. Later batches
alternate between candidates with a high expected improvement and candidates that add most to the front. Times matter
only as objectives or limits: the inputs of the quality model are choices and parameter counts. A row is a design
encoded as integers (genes), one per choice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.rows import distinct_rows
from chipwise.design.limits import Constraint, Objective, is_cost, relative_excess
from chipwise.design.phases.limits import TRADED
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
from chipwise.training.laws.operators import NOTHING_KNOWN, Operator, OperatorPrior, change_after
from chipwise.training.laws.scaling import PACE, START, Law, Pace, fit_law, fit_pace

DRAWN = ("steps", SOLVER, SHIFT, GUIDANCE)  # choices of image generation
SERVED = ("weights", *DRAWN)  # choices that need no training of their own
LOSS = "loss"  # name of the task's loss among a problem's goals
SIZES = ("d_model", "depth", "vocab_size", "patch")  # choices that identify clearly different candidates
LEAST_LOSS = 1e-4  # smallest loss used, so that logarithms are finite
POOL = 4_000
ALIKE = (0.8, 1.25)  # bounds of width, depth and so on, relative to the design that a run stays around
KEPT = ("weights", "patch")  # choices in which conventional designs of other sizes must equal the reference design
AS_MANY = (0.7, 1.4)  # bounds of parameters, relative to the design that a run stays around
FEWEST_ALIKE = 5  # with fewer designs around one size, the whole pool stays
FEWEST = 3  # with at least this many training runs of earlier searches, the quality model is used at once
NARROWED = ("attention", "ffn_width")  # choices per layer of which designs beyond a limit get less
PARENTS, CHILDREN = 6, 150
HOPEFUL = 4  # the first batch is chosen from the best 1/HOPEFUL of the pool, by the scaling law


@dataclass(frozen=True)
class Observation:
    """One finished training run: the candidate's encoded design, the budget spent, training tokens, bits per byte."""

    row: Sequence[int]
    spent: float  # in the unit of the budget: device seconds or tokens
    tokens: int
    loss: float


@dataclass(frozen=True)
class Belief:
    """Posterior of the candidates' log loss after full training, including penalties of soft limits.

    Logarithms are used because the quality model's errors are relative. If the losses themselves were normally
    distributed, candidates with large relative errors could get negative losses.

    Attributes:
        mean: Mean log loss, (n,).
        std: Standard deviations of the log loss, (n,).
        covariance: ``index (c,) -> (c, c)``; its diagonal is the square of ``std``.
        front: Objectives of the trained candidates, to be minimised, (k, m): log loss, then costs.
    """

    mean: Float64Array
    std: Float64Array
    covariance: Callable[[NDArray[np.int64]], Float64Array]
    front: Float64Array


def make_problem(
    space: SearchSpace, metrics: Metrics, goals: tuple[Objective, ...], limits: tuple[Constraint, ...]
) -> Problem:
    """Describes the search as a problem for strategies: costs are predicted, but the task's loss requires training."""
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
    """Chooses candidates from a screened pool as training runs finish; deterministic for a given seed and observations.

    Args:
        space: The space.
        screened: The candidates within the limits.
        metrics: Computes those metrics of rows that can be known without training.
        goals: The objectives.
        limits: The constraints.
        final: Budget of a full training run.
        in_tokens: Whether budgets are in tokens instead of seconds.
        bytes_per_token: Computes the bytes of training data per position for each row, (n,).
        unique_bytes: Bytes of the training data; a training run that reads more repeats the data.
        law: Prior law of the loss as a function of size and data.
        operators: Known effects of operators on loss and training speed.
        pace: Training speed to assume until this run has trained something.
        past: Row, tokens and loss of each training run of earlier searches on the same data.
        seed: Random seed.
    """

    _conventional: Rows | None = None  # designs of usual proportions, of which one is the centre of proposals
    _traded: tuple[str, float] | None = None  # see stay_around
    _like: Rows | None = None  # (1, genes): proposals stay around the size of this design; None: any size

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
        """Converts a training run of an earlier search to an observation, with its cost estimated for this machine."""
        rows = np.array([row], np.int64)
        spent = float(tokens) / (self._full_tokens(rows, self._pace, 1.0)[0])
        return Observation(row=row, spent=spent, tokens=tokens, loss=loss)

    def stay_around(
        self,
        references: Sequence[Mapping[str, object]],
        conventional: Iterable[Mapping[str, object]] = (),
        *,
        traded: tuple[str, float] | None = None,
        before: Sequence[int] = (),
    ) -> Rows | None:
        """Restricts proposals to one conventional design and to designs of its size that differ in few choices.

        Short training runs favour small designs that are worse after long training. The law cannot correct this if
        the long training is about a hundred times longer. But among designs of one size, short runs do show which
        operators lower the loss. The law chooses the size, together with the operators whose effects the prior knows.
        It compares conventional designs within the limits that have at least ``Law.smallest`` times as many parameters
        as the largest of them, and selects the one with the lowest loss after long training. Designs beyond a limit are
        tried with fewer heads or a narrower feed-forward. If latency is an objective, a faster design with nearly the
        same loss by the law is selected instead. Choices per layer are changed in all layers at once.

        Args:
            references: The run's reference designs.
            conventional: Designs of usual proportions, of any size.
            traded: A latency metric, and how much higher the ln loss of a faster design may be.
            before: Row of the design around which the run stayed before it was interrupted, if it is within the limits.

        Returns:
            Row of the design around which proposals stay, (1, genes); None if they are not restricted.
        """
        if not references:
            return None
        largest = min(references, key=self.law_of)
        alike = [one for one in conventional if all(one.get(name) == largest.get(name) for name in KEPT)]
        self._conventional = distinct_rows(np.array([self.nearest(one) for one in (largest, *alike)], np.int64))[0]
        self._traded = traded
        held = np.array([before], np.int64) if before else None
        within = held is not None and excess(self._limits, self._metrics(held))[0] <= 0
        row = held if within else self._centre()
        if row is None:
            return None
        once = self._changed(row)
        rows = distinct_rows(np.vstack([row, once, self._changed(once)]))[0]
        self._like = row
        near = self._kept(rows)
        if len(near) < FEWEST_ALIKE:  # the limits leave hardly any designs of that size
            self._like = None
            return None
        apart = self._differences(near, row)
        self.pool = near[np.lexsort((apart, self._worth(near, row), apart > 0))]
        return row

    def centre(self) -> Rows | None:
        """The design that :meth:`stay_around` would choose by the present predictions of costs, (1, genes).

        None if the run does not stay around one, or if results of earlier searches choose the first design.
        """
        return None if len(self._past) >= FEWEST else self._centre()

    def _centre(self) -> Rows | None:
        if self._conventional is None:
            return None
        forms = self._narrowed(self._with_known_operators(self._conventional))
        count = self._metrics(forms)["parameters"]
        forms = forms[count >= self._start.smallest * count.max(initial=0.0)]
        return forms[self._fastest_as_good(forms, self._traded)][None] if len(forms) else None

    def _fastest_as_good(self, rows: Rows, traded: tuple[str, float] | None) -> int:
        """Index of the row with the lowest loss by the law, or of a faster row with about the same loss.

        ``traded`` names a latency metric and the rise of the ln loss that a row is worth if the best one takes
        ``TRADED`` times as long; rows whose loss rises by more are left out.
        """
        loss = self.law(rows)
        if traded is None:
            return int(np.argmin(loss))
        latency, more = traded
        worse = np.log(loss / loss.min())
        time = np.log(self._metrics(rows)[latency])
        return int(np.argmin(np.where(worse <= more, worse / more + time / math.log(TRADED), np.inf)))

    def _differences(self, rows: Rows, row: Rows) -> NDArray[np.int64]:
        """Number of choices in which each of ``rows`` differs from ``row``, (n,); per-layer choices count once."""
        parts = [(rows[:, columns] != row[:, columns]).any(axis=1) for columns in self._space.columns.values()]
        return np.asarray(np.sum(parts, axis=0), np.int64)

    def _changed(self, rows: Rows) -> Rows:
        """All rows that differ from one of ``rows`` in a single choice; the choices in ``SERVED`` are not changed."""
        found, active = [rows[:0]], self._space.active(rows)
        rows = rows.copy()
        for columns in self._space.columns.values():  # layers that only deeper rows have are set like the first layer
            rows[:, columns] = np.where(active[:, columns], rows[:, columns], rows[:, columns[:1]])
        for name, columns in self._space.columns.items():
            if name not in SERVED:
                found.extend(self._with_each_value(rows, columns))
        return distinct_rows(np.vstack(found))[0]

    def _narrowed(self, rows: Rows) -> Rows:
        """The ``rows`` within the limits, and narrower variants of the others, as far as these are within the limits.

        A variant has fewer heads or a narrower feed-forward in all layers, but at least half as many or half as wide:
        the law counts parameters and does not know what a very narrow part of a layer costs.
        """
        fits = excess(self._limits, self._metrics(rows)) <= 0
        found, wide = [rows[fits]], rows[~fits]
        for name in NARROWED:
            if name not in self._space.columns:
                continue
            columns = self._space.columns[name]
            values, before = self._space.genes[columns[0]].values, wide[:, columns[0]]
            for other in self._with_each_value(wide, columns):
                pairs = zip(other[:, columns[0]], before, strict=True)
                less = [_somewhat_less(values[own], values[usual]) for own, usual in pairs]
                found.append(other[np.array(less, bool)])
        forms = np.vstack(found)
        return distinct_rows(forms[excess(self._limits, self._metrics(forms)) <= 0])[0]

    def _with_known_operators(self, rows: Rows) -> Rows:
        """All combinations of the ``rows`` with the operators whose effects the prior knows."""
        for name in self._operators.operators:
            if name in self._space.columns:
                changed = self._with_each_value(rows, self._space.columns[name])
                rows = distinct_rows(np.vstack([rows, *changed]))[0]
        return rows

    def _with_each_value(self, rows: Rows, columns: NDArray[np.int64]) -> Iterator[Rows]:
        """Yields ``rows`` with each value of the choice in ``columns``, the same in all layers."""
        for value in range(self._space.cardinalities[columns[0]]):
            other = rows.copy()
            other[:, columns] = value
            yield self._space.canonical(other)

    def _kept(self, rows: Rows) -> Rows:
        """Selects the ``rows`` within the limits; if the run stays around one design, only rows of about its size."""
        kept = excess(self._limits, self._metrics(rows)) <= 0
        if self._like is not None:
            kept &= self._alike(rows, self._like)
        return rows[kept]

    def _alike(self, rows: Rows, row: Rows) -> NDArray[np.bool_]:
        """Mask of the rows whose size is about that of ``row``, (1, genes)."""
        kept = np.ones(len(rows), bool)
        for name in SIZES:
            if name in self._space.index:
                own, theirs = (np.asarray(self._space.values(each, name), float) for each in (rows, row))
                kept &= (ALIKE[0] * theirs <= own) & (own <= ALIKE[1] * theirs)
        own, theirs = (self._metrics(each)["parameters"] for each in (rows, row))
        return kept & (AS_MANY[0] * theirs <= own) & (own <= AS_MANY[1] * theirs)

    def set_supernet_prior(self, rows: Rows, scores: Float64Array) -> None:
        """Sets the supernet prior from the supernet's ``scores`` of ``rows``, in bits per byte."""
        residuals = np.log(scores / self.law(rows))
        self._prior = SupernetPrior(self._counted, self._encoder, rows, residuals, seed=self._seed)
        self._fitted_on = []

    def next(self, count: int, observations: Sequence[Observation], taken: Sequence[Sequence[int]]) -> Rows:
        """The next rows to train: ``count`` that are not in ``taken``, or fewer when the pool is exhausted."""
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
        """Row of the first design to train in a run that stays around one size, (1, genes)."""
        if len(self._past) < FEWEST:
            return self.pool[:1]
        pool = self._candidates(observations, (), np.random.default_rng(self._seed))
        return self._most_promising(pool, observations, 1)

    def _most_promising(self, pool: Rows, observations: Sequence[Observation], count: int) -> Rows:
        """The ``count`` rows of ``pool`` with the lowest expected loss, for use while this run has few results.

        The quality model predicts the loss if earlier searches left at least ``FEWEST`` training runs; otherwise the
        law and the supernet do.
        """
        if len(self._past) < FEWEST:
            loss = self._law(observations)(pool) * np.exp(self._trend([])(pool))
        else:
            loss = self.expected(observations, pool)[0]
        return pool[np.argsort(loss * self.penalty_factor(pool), kind="stable")[:count]]

    def _with_other_operators(self, pool: Rows, taken: Rows, count: int) -> Rows:
        """Picks ``count`` rows of ``pool`` that use the most operators not used in ``taken``; the first row wins ties.

        Choices with named values, such as the activation or the place of convolutions, are operators; choices with
        numeric values are sizes.
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
        """Takes ``count`` candidates from the rankings ``orders`` alternately, with different ``SIZES`` where possible.

        In a run that stays around one size, candidates may have the same sizes.
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
        """Up to ``count`` rows not in ``taken`` that the law finds best, starting with rows that differ in ``SIZES``.

        ``observations`` are ignored, because runs that use this function train nothing before the final training runs.
        """
        gone = {self._architecture(row) for row in taken}
        pool = self.pool[[i for i, row in enumerate(self.pool.tolist()) if self._architecture(row) not in gone]]
        order = [int(i) for i in np.argsort(self.law(pool) * self.penalty_factor(pool), kind="stable")]
        return pool[self._in_turns(pool, (order,), count)]

    def nearest(self, choices: Mapping[str, object]) -> list[int]:
        """The row of the space that is closest to a reference design."""
        return [int(i) for i in self._space.nearest(choices)]

    def in_other_formats(self, row: Sequence[int], names: Sequence[str] = SERVED) -> Rows:
        """Variants of ``row`` that differ only in the choices ``names``, and that are predicted to meet the limits.

        By default, these choices are weight format, steps, solver, shift and guidance. All variants share one training
        run.
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
        """Loss that the law expects of the best variant of ``row``, divided by the loss of ``row``; at most 1.

        Variants differ in steps and solver, and are predicted to meet the limits. Only the law is used, because
        the minimum of several noisy predictions would favour the most uncertain one.
        """
        if not self._start.one_pass:
            return 1.0
        forms = np.vstack([np.array([row], dtype=np.int64), self.in_other_formats(row)])
        factors = self._start.of_passes(self._space.equal_steps(forms))
        return float(factors.min() / factors[0])

    def penalty_factor(self, rows: Rows) -> Float64Array:
        """Factor on bits per byte of ``rows``, (n,): 1, or more if soft limits are exceeded."""
        return 1.0 + self.problem.penalty(self.problem.price(rows)[1])

    def law(self, rows: Rows, *, budget: float | None = None) -> Float64Array:
        """Bits per byte that the scaling law expects for ``rows`` before this run has trained anything, (n,).

        ``budget`` is the length of training; by default that of a full training run.
        """
        return self._law([])(rows, budget=budget)

    def law_of(self, choices: Mapping[str, object]) -> float:
        """Like :meth:`law`, for a reference design; the closest row of the space stands in for it."""
        return float(self.law(np.array([self.nearest(choices)]))[0])

    def spread(self, trained: int, scored: int) -> tuple[Rows, Rows]:
        """Rows of the designs to train in a supernet, and rows of the designs to score with it.

        The designs to train are sampled from the pool. The designs to score are chosen from them: one half are those
        that the law finds best, the other half are random.
        """
        rng = np.random.default_rng([self._seed, 19])
        rows = self.pool[np.sort(rng.permutation(len(self.pool))[:trained])]
        order = np.argsort(self.law(rows), kind="stable")
        best, rest = order[: scored // 2], rng.permutation(order[scored // 2 :])
        return rows, rows[np.concatenate([best, rest[: scored - len(best)]])]

    def expected(
        self, observations: Sequence[Observation], rows: Rows, *, budget: float | None = None
    ) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of bits per byte of ``rows`` after training for ``budget`` (default: in full)."""
        law, trend = self._learn(observations)
        mean, std = self._model.predict(rows)
        loss = np.exp(mean + trend(rows)) * law(rows, budget=budget)
        return loss, loss * std

    def foreseen(self, rows: Rows, *, budget: float) -> tuple[Float64Array, Float64Array]:
        """Mean and standard deviation of the loss that was expected of ``rows`` before this run trained anything."""
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
        """Fits the scaling law and the quality model to all training runs; returns the law and :meth:`_trend`."""
        law = self._law(observations)
        observations = [*self._past, *observations]
        seen, tokens = self._seen(observations)
        expected = law(seen, tokens)
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
        """Returns a function from rows to supernet prior × trust in the prior; it returns 0 if there is no supernet."""
        prior = self._prior
        if prior is None:
            return lambda rows: np.zeros(len(rows))
        trust = prior.trust(np.asarray(seen, np.int64), residuals)
        return lambda rows: trust * prior(rows)

    def _fresh(self) -> QualityModel:
        """A new quality model that was never fitted, so that a resumed search gets the same posterior."""
        return QualityModel(self._counted, seed=self._seed, encoder=self._encoder)

    def _counted_problem(self) -> Problem:
        """The problem that the quality model sees: choices and parameter counts, without times.

        Predicted times are left out because they vary from day to day with measurements, while quality does not depend
        on them.
        """

        def free(rows: Rows) -> tuple[Float64Array, Float64Array]:
            return np.stack(self._sizes(rows), axis=1), np.zeros((len(rows), 0))

        goals = (Goal(name=LOSS), Goal(name="layers", free=True), Goal(name="head", free=True))
        return replace(self.problem, goals=goals, limits=(), free=free)

    def _law(self, observations: Sequence[Observation]) -> Callable[..., Float64Array]:
        """Fits the scaling law to all training runs; the result maps rows (and tokens or a budget) to bits per byte."""
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
        """Converts ``tokens`` of each row to bytes, (n,); repeated text counts as fewer bytes of new text."""
        return self._start.fresh(tokens * self._bytes_per_token(rows), self._unique_bytes)

    def _seen(self, observations: Sequence[Observation]) -> tuple[Rows, Float64Array]:
        """Rows, (n, genes), and training tokens, (n,), of the observed training runs."""
        rows = np.array([item.row for item in observations], dtype=np.int64).reshape(-1, len(self._space.genes))
        return rows, np.array([item.tokens for item in observations], float)

    def _fitted_pace(self, observations: Sequence[Observation]) -> Pace:
        """Training speed in this run, fitted to its training runs."""
        if not observations:
            return self._pace
        seen, tokens = self._seen(observations)
        spent = np.array([item.spent for item in observations]) / self._slower(seen)
        return fit_pace(*self._sizes(seen), tokens / spent)

    def _factor(self, rows: Rows, tokens: Float64Array) -> Float64Array:
        """Factor on the law's loss for the sampling steps, operators and depth of ``rows`` after ``tokens``, (n,)."""
        known = self._operators.depths
        deepest = change_after(known[max(known)], tokens) if known else 0.0
        change = self._change(rows, tokens) + self._by_depth(known, rows, tokens, deepest)
        return self._start.of_passes(self._space.equal_steps(rows)) * np.exp(change)

    def _by_depth(
        self, known: Mapping[int, Mapping[float, float]], rows: Rows, tokens: Float64Array, otherwise: ArrayLike
    ) -> Float64Array:
        """Change of the ln loss after ``tokens``, (n,), by number of layers; ``otherwise`` where that is unknown."""
        depths, total = self._space.values(rows, "depth"), np.broadcast_to(otherwise, len(rows))
        for depth, changes in known.items():
            total = np.where(depths == depth, change_after(changes, tokens), total)
        return np.asarray(total, float)

    def _change(self, rows: Rows, tokens: Float64Array) -> Float64Array:
        """By how much the operators of ``rows`` change the ln loss after ``tokens``, (n,)."""
        total = np.zeros(len(rows))
        for share, operator in self._known_operators(rows):
            total += share * self._by_depth(operator.shallow, rows, tokens, change_after(operator.loss, tokens))
        return total

    def _slower(self, rows: Rows) -> Float64Array:
        """Factor on the seconds per training token because of the operators of ``rows``, (n,)."""
        slower = max(1.0, self._pace.slowness)  # of matrix products, not of convolutions
        parts = [share * operator.seconds / slower for share, operator in self._known_operators(rows)]
        return np.asarray(np.exp(np.sum([np.zeros(len(rows)), *parts], axis=0)))

    def _known_operators(self, rows: Rows) -> Iterator[tuple[Float64Array, Operator]]:
        """Yields each operator of the prior with the share of each row's layers that have it, (n,)."""
        active, columns = self._space.active(rows), self._space.columns
        listed = {name: self._space.genes[own[0]].values for name, own in columns.items()}
        found = [
            (name, [str(known) == value for known in listed[name]], operator)
            for name, operators in self._operators.operators.items()
            for value, operator in operators.items()
            if name in listed
        ]
        if self._operators.grouped is not None and "attention" in listed:  # values: (query heads, key heads)
            found.append(("attention", [pair[0] > pair[1] for pair in listed["attention"]], self._operators.grouped))
        for name, holds, operator in found:
            own = active[:, columns[name]]
            yield (np.array(holds)[rows[:, columns[name]]] & own).sum(axis=1) / own.sum(axis=1), operator

    def _worth(self, rows: Rows, row: Rows) -> Float64Array:
        """Change of the ln loss due to the operators of ``rows``, (n,), after as many tokens as ``row`` is trained on.

        Slow operators leave time for less text.
        """
        change = self._change(rows, np.repeat(self._full_tokens(row, self._pace), len(rows)))
        return change if self._in_tokens else change + self._start.slope * np.log2(self._slower(rows))

    def _full_tokens(self, rows: Rows, pace: Pace, budget: float | None = None) -> Float64Array:
        """Tokens on which each row can be trained at ``pace`` within ``budget`` (default: full training), (n,)."""
        amount = np.full(len(rows), budget or self._final)
        return amount if self._in_tokens else amount * pace.tokens_per_s(*self._sizes(rows)) / self._slower(rows)

    def _sizes(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Parameter counts of the layers and of the head of each row, both (n,)."""
        head = (self._space.outputs(rows) * self._space.values(rows, "d_model")).astype(float)
        tables = np.where(self._space.values(rows, "tie_embeddings"), 1.0, 2.0)
        return np.maximum(self._metrics(rows)["parameters"] - tables * head, 1.0), head

    @staticmethod
    def _losses(observations: Sequence[Observation]) -> Float64Array:
        """Observed losses, (n,), bounded from below so that their logarithms are finite."""
        return np.maximum([item.loss for item in observations], LEAST_LOSS)

    def _candidates(
        self, observations: Sequence[Observation], taken: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> Rows:
        """The pool and variants of the best candidates; leaves out rows that can share training with ``taken`` rows."""
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
        """Key that is equal for rows that can share a training run: it leaves out the choices in ``SERVED``.

        The key says whether the model is guided, but not how strongly, because guided models are also trained without
        labels.
        """
        key = [int(value) for value in row]
        for name in SERVED:
            column = self._space.index.get(name)
            if column is not None:
                guided = name == GUIDANCE and self._space.genes[column].values[key[column]] != UNGUIDED
                key[column] = int(guided)
        return tuple(key)


def _somewhat_less(value: object, before: object) -> bool:
    """Whether ``value``, a number or a tuple of numbers and names, is below ``before``, but at least half of it."""
    parts, wider = (one if isinstance(one, tuple) else (one,) for one in (value, before))
    pairs = list(zip(parts, wider, strict=True))
    return value != before and all(
        b / 2 <= a <= b if isinstance(a, int) and isinstance(b, int) else a == b for a, b in pairs
    )


def _spread(columns: Float64Array, held: Float64Array, count: int) -> NDArray[np.int64]:
    """Indices of ``count`` points, each the farthest from ``held`` and from the points chosen before it."""
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

"""Finds the best designs of a space by a scaling law, without training.

Each design is encoded as a row of integers (genes), one per choice. Costs and losses of many rows are computed by array
operations, so spaces of 10^15 designs can be searched. Candidates within the limits evolve towards lower loss and lower
costs. Then single choices of the best design are changed, in one layer or in all layers at once, until no change lowers
its loss. All randomness comes from the seed and no step depends on the clock, so results are reproducible. The
losses are those that the law expects, with the interval that the law states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.core.rows import distinct_rows
from chipwise.design.limits import Constraint, Objective
from chipwise.design.phases.screening import Metrics, excess, mutate, screen
from chipwise.design.strategies.pareto import crowding, non_dominated
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.space.space_spec import EXPERTS, FFN_KINDS, LAYER_WEIGHTS
from chipwise.predict.cost.model import Predicted
from chipwise.training.laws.laws import Law
from chipwise.training.laws.shapes import Shapes

LOSS = "loss"  # metric: expected nats per token on the law's text
BLOCK = 8_192  # rows computed at once, so that data stays in the caches
DRAWS, PARENTS, FEWEST_CHILDREN = 200_000, 400, 400
MOST_ROUNDS, STALE_ROUNDS = 60, 8
_BETTER = 1e-6  # relative improvement of a loss that counts as progress


class RowShapes:
    """Computes the :class:`Shapes` of many canonical rows of a space, as :meth:`Shapes.of` does for one design.

    Layers that read the same genes are computed only once, so tied layers cost no extra time.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        spec = space.spec
        self._attention = _slots(space, "attention")
        self._ffn = _slots(space, "ffn", "ffn_width")
        own = LAYER_WEIGHTS in spec.layer_choices
        self._formats = _slots(space, LAYER_WEIGHTS) if own else []  # if empty, layers use the head's format
        pairs = np.array(spec.attention_choices(), float)
        self._pairs = np.stack([2 * pairs.sum(axis=1), pairs[:, 0] / pairs[:, 1], pairs[:, 0]])
        widths = np.array(spec.layer.ffn_width, float)
        matrices = np.array([_matrices(kind) for kind in spec.layer.ffn])
        routers = np.array([EXPERTS.get(kind, (0, 0))[0] for kind in spec.layer.ffn], float)[:, None]
        self._met, self._all = ((matrices[:, i, None] * widths + routers).ravel() for i in (0, 1))
        self._bits = np.array(
            [weight_format(name).stored_bits for name in spec.values(LAYER_WEIGHTS if own else "weights")]
        )
        taps = {"none": 0, "attention": 1, "both": 2}
        self._vectors = np.array([2.0 + taps[conv] * spec.conv_taps for conv in spec.conv])

    def __call__(self, rows: Rows) -> Shapes:
        """The shapes of ``rows``, (n, genes)."""
        space, spec = self._space, self._space.spec
        genes = np.ascontiguousarray(rows.T)
        where = genes[space.index["sharing"]] * len(spec.depth) + genes[space.index["depth"]]
        width = np.array(spec.d_model, float)[genes[space.index["d_model"]]]
        depth = np.array(spec.depth, float)[genes[space.index["depth"]]]
        head_size = np.array(spec.head_size, float)[genes[space.index["head_size"]]]
        vectors = self._vectors[genes[space.index["conv"]]] if "conv" in space.index else self._vectors[0]
        mixtures, shared = not np.array_equal(self._met, self._all), "pairs" in spec.sharing
        owned_layers = sum((owned[where] for _, _, owned in self._attention), np.zeros(len(rows)))
        attention, met, run, own_attention, own_met = (np.zeros(len(rows)) for _ in range(5))
        queries, across = np.zeros(len(rows)), np.zeros(len(rows))
        for (column,), count, owned in self._attention:
            layers, pair = count[where], genes[column]
            projections = self._pairs[0][pair]
            attention += layers * projections
            queries += layers * self._pairs[1][pair]
            across += layers * self._pairs[2][pair]
            if shared:
                own_attention += owned[where] * projections
        for (kind, ffn_width), count, owned in self._ffn:
            cell = (
                genes[ffn_width]
                if len(spec.layer.ffn) == 1
                else genes[kind] * len(spec.layer.ffn_width) + genes[ffn_width]
            )
            layers, feed = count[where], self._met[cell]
            met += layers * feed
            if mixtures:
                run += layers * self._all[cell]
            if shared:
                own_met += owned[where] * feed
        run = run if mixtures else met
        bits = self._bits[genes[space.index["weights"]]] if not self._formats else np.zeros(len(rows))
        for (column,), count, _ in self._formats:
            bits = bits + count[where] / depth * self._bits[genes[column]]
        least = (own_attention * head_size + own_met + owned_layers * vectors) if shared else None
        return Shapes(
            least=width * (attention * head_size + met + depth * vectors if least is None else least),
            most=width * (attention * head_size + run + depth * vectors),
            width=width,
            depth=depth,
            ffn_share=met / (depth * width),
            queries_per_kv=queries / depth,
            attention_width=across * head_size / (depth * width),
            weight_bits=bits,
        )


def _slots(space: SearchSpace, *names: str) -> list[tuple[tuple[int, ...], Float64Array, Float64Array]]:
    """Groups layers by the genes that they read.

    For each group: the genes' columns, the number of layers, and the number of layers with weights of their own. Both
    numbers are flat arrays with one entry for each combination of ``sharing`` and ``depth`` in the space.
    """
    spec, of = space.spec, [space.slots[name].of for name in names]
    found: dict[tuple[int, ...], Float64Array] = {}
    for s, sharing in enumerate(spec.sharing):
        for d, depth in enumerate(spec.depth):
            for layer in range(depth):
                columns = tuple(
                    int(space.columns[name][slots[s, d, layer]]) for name, slots in zip(names, of, strict=True)
                )
                counts = found.setdefault(columns, np.zeros((2, len(spec.sharing) * len(spec.depth))))
                counts[:, s * len(spec.depth) + d] += (1, not (sharing == "pairs" and layer % 2))
    return [(columns, counts[0], counts[1]) for columns, counts in found.items()]


def _matrices(kind: str) -> tuple[float, float]:
    """Counts the (model width, FFN width) matrices in a feed-forward of ``kind``: those active per token, and all."""
    each = 3.0 if FFN_KINDS[kind.partition("-")[0]][1] else 2.0
    experts, active = EXPERTS.get(kind, (1, 1))
    return active * each, experts * each


@dataclass(frozen=True, kw_only=True)
class FoundByLaw:
    """Result of a search by a scaling law; rows are sorted by expected loss, best first.

    Attributes:
        rows: Encoded designs on the Pareto front of loss and costs, all within the limits, (n, genes).
        metrics: Metrics of the rows, each (n,), in SI units; ``loss`` in nats per token.
        low: Lower ends of the losses' intervals, (n,).
        high: Upper ends of the losses' intervals, (n,).
        priced: Number of candidates whose costs were computed during the search.
        notes: Properties of the best design that lie outside the range of the law's fit, and assumptions about losses.
    """

    space: SearchSpace
    law: Law
    tokens: float
    rows: Rows
    metrics: dict[str, Float64Array]
    low: Float64Array
    high: Float64Array
    priced: int
    notes: tuple[str, ...]

    def design(self, place: int = 0, *, name: str = "by-law") -> Design:
        """The design at index ``place`` of the front; by default the best one."""
        return self.space.design(self.rows[place], name=name)

    def loss(self, place: int = 0) -> Predicted:
        """The expected loss of the design at index ``place`` of the front."""
        ends = (float(values[place]) for values in (self.metrics[LOSS], self.low, self.high))
        return Predicted(**dict(zip(("value", "low", "high"), ends, strict=True)))

    def difference(self, reference: Design, place: int = 0) -> Predicted:
        """Expected loss of a design minus that of ``reference`` after equal training tokens, in nats per token."""
        return self.law.difference(reference, self.design(place), self.tokens)


def with_loss(space: SearchSpace, metrics: Metrics, law: Law, tokens: float) -> Metrics:
    """``metrics`` with ``loss`` added: the loss that the law expects for each row after ``tokens`` tokens."""
    shapes = RowShapes(space)

    def both(rows: Rows) -> dict[str, Float64Array]:
        loss = np.empty(len(rows))
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            loss[start : start + BLOCK] = law.nats_per_token(shapes(block), tokens)
        return {**metrics(rows), LOSS: loss}

    return both


def search_by_law(
    space: SearchSpace,
    metrics: Metrics,
    law: Law,
    *,
    tokens: float,
    constraints: Sequence[Constraint] = (),
    objectives: Sequence[Objective] = (),
    seed: int,
    draws: int = DRAWS,
) -> FoundByLaw:
    """Finds the Pareto front of expected loss and ``objectives`` within the hard limits; improves the best design.

    Args:
        space: The space.
        metrics: Computes the costs of rows, as a mapping from metrics to values.
        law: The law of the loss.
        tokens: Training tokens of each design, in one pass.
        constraints: Limits on the metrics.
        objectives: Objectives other than the loss.
        seed: Random seed.
        draws: Random candidates at the start; each round adds a tenth as many children.

    Raises:
        Infeasible: No candidate is within the limits; the message names the limit that is out of reach.
    """
    limits, both = tuple(constraints), with_loss(space, metrics, law, tokens)
    signs = {goal.metric: 1.0 if goal.direction == "minimize" else -1.0 for goal in objectives}
    goals = {LOSS: 1.0} | signs
    begun = screen(space, both, limits, seed=seed, draws=draws)
    held = _Feasible(begun.rows, {name: np.asarray(values) for name, values in begun.metrics.items()}).front(goals)
    rng, priced, stale = np.random.default_rng([seed, 23]), begun.priced, 0
    for _ in range(MOST_ROUNDS):
        least = held.metrics[LOSS].min()
        children = _children(space, held.parents(goals), max(FEWEST_CHILDREN, draws // 10), rng)
        priced += len(children)
        held = held.joined(_within(children, both, limits)).front(goals)
        stale = 0 if held.metrics[LOSS].min() < least - _BETTER else stale + 1
        if stale >= STALE_ROUNDS:
            break
    while True:
        least = held.metrics[LOSS].min()
        near = _neighbours(space, held.rows[held.metrics[LOSS].argmin()])
        priced += len(near)
        held = held.joined(_within(near, both, limits)).front(goals)
        if held.metrics[LOSS].min() >= least - _BETTER:
            break
    order = np.argsort(held.metrics[LOSS], kind="stable")
    rows, found = held.rows[order], {name: values[order] for name, values in held.metrics.items()}
    shapes = RowShapes(space)(rows)
    _, low, high = law.expect(shapes, tokens)
    notes = law.notes(RowShapes(space)(rows[:1]), tokens)
    if len(space.spec.vocab_size) > 1:
        notes.append("losses of different vocabularies share one unit; a vocabulary's effect on the loss is ignored")
    return FoundByLaw(
        space=space, law=law, tokens=tokens, rows=rows, metrics=found, low=low, high=high, priced=priced,
        notes=tuple(notes),
    )  # fmt: skip


@dataclass(frozen=True)
class _Feasible:
    """Encoded designs within the limits, with their metrics."""

    rows: Rows
    metrics: dict[str, Float64Array]

    def joined(self, other: _Feasible) -> _Feasible:
        """The union of these rows and those of ``other``, without duplicates."""
        rows, first = distinct_rows(np.vstack([self.rows, other.rows]))
        metrics = {name: np.concatenate([a, other.metrics[name]])[first] for name, a in self.metrics.items()}
        return _Feasible(rows, metrics)

    def front(self, goals: dict[str, float]) -> _Feasible:
        """Keeps the non-dominated rows and the ``PARENTS`` rows with the lowest loss."""
        keep = non_dominated(self._points(goals))
        keep[np.argsort(self.metrics[LOSS], kind="stable")[:PARENTS]] = True
        return self._where(np.flatnonzero(keep))

    def parents(self, goals: dict[str, float]) -> Rows:
        """The rows with the lowest loss, and the rows of the front that are farthest from their neighbours."""
        best = np.argsort(self.metrics[LOSS], kind="stable")[: PARENTS // 2]
        front = np.flatnonzero(non_dominated(self._points(goals)))
        if len(front) > PARENTS // 2:
            front = front[np.argsort(-crowding(self._points(goals)[front]), kind="stable")[: PARENTS // 2]]
        chosen: Rows = self.rows[np.union1d(best, front)]
        return chosen

    def _points(self, goals: dict[str, float]) -> Float64Array:
        return np.column_stack([sign * self.metrics[name] for name, sign in goals.items()])

    def _where(self, index: NDArray[np.int64]) -> _Feasible:
        return _Feasible(self.rows[index], {name: values[index] for name, values in self.metrics.items()})


def _within(rows: Rows, metrics: Metrics, limits: tuple[Constraint, ...]) -> _Feasible:
    """Selects the rows within the limits."""
    known = {name: np.asarray(values) for name, values in metrics(rows).items()}
    keep = np.flatnonzero(excess(limits, known) <= 0)
    return _Feasible(rows, known)._where(keep)


def _children(space: SearchSpace, parents: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Makes variants of ``parents``: by crossover, small steps, random genes, or one new value in all layers."""
    part = count // 4
    first = parents[rng.integers(0, len(parents), 4 * part)]
    other = parents[rng.integers(0, len(parents), part)]
    mixed = np.where(rng.random(other.shape) < 0.5, first[:part], other)
    stepped = first[part : 2 * part] + rng.integers(-1, 2, other.shape) * (
        rng.random(other.shape) < rng.choice([1, 2, 4], part)[:, None] / other.shape[1]
    )
    alike = first[2 * part : 3 * part].copy()
    names = list(space.columns)
    chosen = rng.integers(0, len(names), part)
    for number, name in enumerate(names):
        mine, columns = np.flatnonzero(chosen == number), space.columns[name]
        alike[np.ix_(mine, columns)] = rng.integers(0, space.cardinalities[columns[0]], (len(mine), 1))
    drawn = mutate(space, first[3 * part :], rng)
    near = np.clip(np.vstack([mixed, stepped, alike]), 0, space.cardinalities - 1)
    return distinct_rows(np.vstack([space.canonical(near), drawn]))[0]


def _neighbours(space: SearchSpace, row: NDArray[np.int64]) -> Rows:
    """Variants of ``row`` with one gene changed, one choice set in all layers, or one choice raised and one lowered."""
    found = [row]
    for columns in [np.array([i]) for i in range(len(row))] + [c for c in space.columns.values() if len(c) > 1]:
        for value in range(space.cardinalities[columns[0]]):
            changed = row.copy()
            changed[columns] = value
            found.append(changed)
    groups = list(space.columns.values())
    for up in groups:
        for down in groups:
            changed = row.copy()
            changed[up] += 1
            changed[down] -= 1
            found.append(changed)
    near = np.clip(np.array(found), 0, space.cardinalities - 1)
    return distinct_rows(space.canonical(near))[0]

"""Encodes rows of integers as numeric features for a quality model.

Every variable becomes polynomial contrasts (linear, quadratic, …) that are 0 if the variable is inactive. Variables of
one kind, such as the widths of all layers, also share a column with their sum, so observing one wide layer says
something about all layers. Quantities that the cost model computes are added as logarithms. If a problem does not state
when variables are inactive, or which variables are of one kind, this is inferred from the free costs (those that need
no trial).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.design.strategies.strategy import Problem, Rows

_DEGREE_SCALE = 0.7  # prior weight of each polynomial degree relative to the degree below
_MAX_DEGREE = 6
_ALIKE = 0.25  # variables count as one kind if their effects on costs differ by less than this share


def contrasts(cardinality: int) -> Float64Array:
    """Orthogonal polynomials over ``cardinality`` ordered values, (cardinality, degrees), each with mean square 1.

    >>> contrasts(2).ravel().round(6).tolist()
    [-1.0, 1.0]
    """
    degrees = min(cardinality, _MAX_DEGREE + 1)
    powers = np.vander(np.linspace(-1, 1, cardinality), degrees, increasing=True)
    basis, upper = np.linalg.qr(powers)
    basis = basis * np.sign(np.diag(upper)) * np.sqrt(cardinality)
    return np.asarray(basis[:, 1:], float)


class Encoder:
    """Encodes rows of a problem as feature columns; the columns of a group share one weight.

    Attributes:
        groups: Index of the weight that each column uses, (p,).
        effects: Effect of each variable on the free costs (those that need no trial), in standard deviations, (d,).
    """

    def __init__(self, problem: Problem, *, seed: int) -> None:
        self.problem = problem
        rng = np.random.default_rng([seed, 1])
        self._contrasts = [
            contrasts(int(c)) * _DEGREE_SCALE ** np.arange(min(int(c) - 1, _MAX_DEGREE)) for c in problem.cardinalities
        ]
        reference = problem.draw(1024, rng)
        raw = self._known(reference, *problem.price(reference))
        self._known_mean, self._known_std = raw.mean(axis=0), raw.std(axis=0)
        self._known_use = self._known_std > 1e-9
        response, active = self._probe(reference[:48])
        self.effects = np.abs(response).mean(axis=0).sum(axis=1)
        self._rules = [] if problem.active is not None else _conditions(problem, reference[:48], active)
        if problem.kinds is not None:
            self._kinds = _named(problem, problem.kinds)
        else:
            self._kinds = _runs(problem, self._rules)
            self._kinds += [kind for kind in _alike(problem, response, active) if kind not in self._kinds]
        self.direction = response.mean(axis=0)  # (d, known columns)
        self.groups = np.concatenate(self._plan())

    def _plan(self) -> list[NDArray[np.int64]]:
        plan, count = [], 0
        for table in self._contrasts:
            plan.append(np.full(table.shape[1], count))
            count += 1
        for _ in self._kinds:
            plan.append(np.array([count]))
            count += 1
        for column, _, _ in self._rules:
            plan.append(np.full(self._contrasts[column].shape[1], count))
            count += 1
        plan.append(count + np.arange(int(self._known_use.sum())))
        return plan

    def _known(self, rows: Rows, costs: Float64Array, violations: Float64Array) -> Float64Array:
        """Features known without training, (n, columns); columns in which all values are positive become logarithms."""
        known = (
            np.hstack([costs, violations + 1.0]) if len(rows) else np.zeros((0, costs.shape[1] + violations.shape[1]))
        )
        known = np.clip(known, -1e12, 1e12)
        if not hasattr(self, "_logarithmic"):
            self._logarithmic = (known > 0).all(axis=0)
        columns = self._logarithmic
        known[:, columns] = np.log(np.maximum(known[:, columns], 1e-12))
        return known

    def _probe(self, base: Rows) -> tuple[Float64Array, NDArray[np.bool_]]:
        """Change of the known columns if a variable goes from its first to its last value, and whether any changed."""
        problem, (n, d) = self.problem, base.shape
        low, high = np.repeat(base[:, None], d, axis=1), np.repeat(base[:, None], d, axis=1)
        index = np.arange(d)
        low[:, index, index], high[:, index, index] = 0, problem.cardinalities - 1
        both = [
            (self._known(rows, *problem.price(rows)) - self._known_mean) / np.where(self._known_use, self._known_std, 1)
            for rows in (problem.canonicalise(part.reshape(-1, d)) for part in (low, high))
        ]
        response = (both[1] - both[0]).reshape(n, d, -1)
        moved = np.abs(response).max(axis=2, initial=0.0) > 1e-12
        if problem.active is not None:
            moved &= problem.active(base)
        return response, moved

    def active(self, rows: Rows) -> NDArray[np.bool_]:
        """Mask of the active variables of each row, (n, d)."""
        if self.problem.active is not None:
            return self.problem.active(rows)
        mask = np.ones(rows.shape, bool)
        for column, switch, off in self._rules:
            mask[:, column] = ~np.isin(rows[:, switch], off)
        return mask

    def strata(self, rows: Rows) -> NDArray[np.int64]:
        """Index of each row's stratum, (n,); rows of one stratum agree in the variables :attr:`strata_columns`."""
        number = np.zeros(len(rows), np.int64)
        for column in self.strata_columns:
            number = number * self.problem.cardinalities[column] + rows[:, column]
        return number

    @property
    def strata_columns(self) -> list[int]:
        """The (at most two) variables with the largest effect on costs, such as width and depth."""
        usual = float(np.median(self.effects))
        chosen: list[int] = []
        product = 1
        for column in np.argsort(-self.effects, kind="stable")[:2]:
            product *= int(self.problem.cardinalities[column])
            if self.effects[column] > 2 * usual > 0 and product <= 36:
                chosen.append(int(column))
        return chosen

    def encode(
        self, rows: Rows, costs: Float64Array | None = None, violations: Float64Array | None = None
    ) -> Float64Array:
        """Features of ``rows``, (n, p); callers that know the free costs and violations can pass them."""
        if costs is None or violations is None:
            costs, violations = self.problem.price(rows)
        mask = self.active(rows)
        parts = [table[rows[:, i]] * mask[:, i : i + 1] for i, table in enumerate(self._contrasts)]
        sums = [sum(parts[i][:, :1] for i in kind) / np.sqrt(len(kind)) for kind in self._kinds]
        hidden = [self._contrasts[i][rows[:, i]] * ~mask[:, i : i + 1] for i, _, _ in self._rules]
        known = (self._known(rows, costs, violations) - self._known_mean)[:, self._known_use]
        return np.hstack([*parts, *sums, *hidden, known / self._known_std[self._known_use]])


def _named(problem: Problem, names: Sequence[str]) -> list[list[int]]:
    kinds: dict[tuple[str, int], list[int]] = {}
    for i, (kind, c) in enumerate(zip(names, problem.cardinalities, strict=True)):
        kinds.setdefault((kind, int(c)), []).append(i)
    return [members for members in kinds.values() if len(members) > 1 and problem.cardinalities[members[0]] > 1]


def _runs(problem: Problem, rules: list[tuple[int, int, NDArray[np.int64]]]) -> list[list[int]]:
    """Runs of consecutive variables with equal cardinality, such as the FFN widths of layers 0, 1, …

    A run ends with the variable that is inactive most often, because this is the variable of the last layer.
    """
    switches = {column for _, column, _ in rules}
    most = max((len(off) for _, _, off in rules), default=0)
    ends = {column for column, _, off in rules if len(off) == most}
    runs: list[list[int]] = [[]]
    for i, c in enumerate(problem.cardinalities):
        if runs[-1] and (c != problem.cardinalities[runs[-1][-1]] or runs[-1][-1] in ends):
            runs.append([])
        if i not in switches:
            runs[-1].append(i)
    return [run for run in runs if len(run) > 2] if rules else []


def _alike(problem: Problem, response: Float64Array, active: NDArray[np.bool_]) -> list[list[int]]:
    """Groups of at least three variables with equal cardinality and similar effects on the known columns."""
    if response.shape[2] == 0:
        return []
    weight = np.maximum(active.sum(axis=0), 1)[:, None]
    signature = (response * active[..., None]).sum(axis=0) / weight
    left = [i for i in np.argsort(-np.abs(signature).sum(axis=1), kind="stable") if np.abs(signature[i]).sum() > 1e-6]
    kinds: list[list[int]] = []
    while left:
        head = left[0]
        size = np.abs(signature[head]).max()
        members, mean = [head], signature[head]
        for i in left[1:]:
            if (
                problem.cardinalities[i] == problem.cardinalities[head]
                and np.abs(signature[i] - mean).max() < _ALIKE * size
            ):
                members.append(i)
                mean = signature[members].mean(axis=0)
        left = [i for i in left if i not in members]
        if len(members) > 2:
            kinds.append(sorted(int(i) for i in members))
    return kinds


def _conditions(problem: Problem, base: Rows, moved: NDArray[np.bool_]) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Rules (variable, switch, values): the variable has no effect if and only if ``switch`` has one of ``values``."""
    rules = []
    for column in range(base.shape[1]):
        still = ~moved[:, column]
        if not still.any() or still.all():
            continue
        for switch in range(base.shape[1]):
            off = np.unique(base[still, switch])
            if switch != column and np.array_equal(np.isin(base[:, switch], off), still):
                rules.append((column, switch, off))
                break
    return rules

"""The trials that a strategy knows: finished trials with their values, and pending trials."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.design.strategies.strategy import Problem, Rows
from chipwise.errors import InputError


class History:
    """Finished rows with their values, and pending rows.

    Adding 10,000 rows one at a time is as fast as adding them all at once.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._rows = [np.zeros((0, len(problem.cardinalities)), np.int64)]
        self._objectives = [np.zeros((0, len(problem.goals)))]
        self._excess = [np.zeros((0, len(problem.limits)))]
        self.trial_count = 0
        self._known: set[bytes] = set()
        self._pending: dict[bytes, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return sum(len(part) for part in self._rows)

    @property
    def rows(self) -> Rows:
        """Canonical rows of successful trials, (n, d)."""
        return _joined(self._rows)

    @property
    def objectives(self) -> Float64Array:
        """Objectives of :attr:`rows`, all to be minimised, (n, m)."""
        return _joined(self._objectives)

    @property
    def violations(self) -> Float64Array:
        """Violations of the limits by :attr:`rows`, (n, k)."""
        return _joined(self._excess)

    @property
    def pending(self) -> Rows:
        """Rows that were proposed and have no result yet."""
        return np.array(list(self._pending.values()), np.int64).reshape(-1, len(self.problem.cardinalities))

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Mask of the :attr:`rows` that meet every hard limit, (n,)."""
        return self.problem.feasible(self.violations)

    @property
    def counted(self) -> Float64Array:
        """Objectives of :attr:`rows`, (n, m), with the penalties of soft limits added to the first objective."""
        return penalised(self.objectives, self.problem.penalty(self.violations))

    def is_new(self, rows: Rows) -> NDArray[np.bool_]:
        """Mask of canonical ``rows`` that are neither finished nor pending, and do not repeat an earlier one."""
        seen: set[bytes] = set()
        fresh = np.zeros(len(rows), bool)
        for i, row in enumerate(np.ascontiguousarray(rows)):
            key = row.tobytes()
            fresh[i] = key not in self._known and key not in seen
            seen.add(key)
        return fresh

    def mark_pending(self, rows: Rows) -> None:
        """Records that ``rows`` are being evaluated."""
        for row in np.ascontiguousarray(rows):
            self._known.add(row.tobytes())
            self._pending[row.tobytes()] = row.copy()

    def unmark_pending(self, rows: Rows) -> None:
        """Undoes :meth:`mark_pending`."""
        for row in np.ascontiguousarray(rows):
            self._known.discard(row.tobytes())
            self._pending.pop(row.tobytes(), None)

    def tell(self, rows: ArrayLike, objectives: ArrayLike | None, violations: ArrayLike | None = None) -> None:
        """Adds results of trials; see :meth:`Strategy.tell`.

        Raises:
            InputError: The shapes are wrong, or violations that no cost model computes are missing.
        """
        found = self.problem.canonicalise(rows)
        if not found.size:
            return
        n, m, k = len(found), len(self.problem.goals), len(self.problem.limits)
        if objectives is None:
            values = np.full((n, m), np.nan)
        else:
            values = np.asarray(objectives, float).reshape(n, -1) if np.size(objectives) == n * m else np.zeros((0, 0))
            if values.shape != (n, m):
                raise InputError(f"{n} rows need objectives of shape {(n, m)}, not {np.shape(objectives)}")
            values = self.problem.to_minimise(values)
        excess = self._violations(found, violations, failed=objectives is None)
        if excess.shape != (n, k):
            raise InputError(f"{n} rows need violations of shape {(n, k)}, not {excess.shape}")
        for row in np.ascontiguousarray(found):
            self._known.add(row.tobytes())
            self._pending.pop(row.tobytes(), None)
        good = np.isfinite(values).all(axis=1) & np.isfinite(excess).all(axis=1)
        self.trial_count += n
        self._rows.append(found[good])
        self._objectives.append(values[good])
        self._excess.append(excess[good])

    def _violations(self, rows: Rows, given: ArrayLike | None, *, failed: bool) -> Float64Array:
        n, k = len(rows), len(self.problem.limits)
        if given is not None:
            return np.asarray(given, float).reshape(n, -1) if k else np.zeros((n, 0))
        if self.problem.expensive_limits and not failed:
            names = ", ".join(self.problem.limits[i].name for i in self.problem.expensive_limits)
            raise InputError(f"pass the violations of {names}, because no cost model computes them")
        excess = np.full((n, k), np.nan if failed else 0.0)
        excess[:, self.problem.free_limits] = self.problem.price(rows)[1]
        return excess


def penalised(points: Float64Array, penalty: Float64Array) -> Float64Array:
    """Objectives (n, m), to be minimised, with the first one increased by the relative ``penalty`` (n,)."""
    paid = np.array(points)
    paid[:, 0] += np.abs(paid[:, 0]) * penalty
    return paid


def _joined(parts: list[AnyArray]) -> AnyArray:
    """Concatenates the arrays in ``parts``, and replaces the contents of this list with the result."""
    if len(parts) > 1:
        parts[:] = [np.vstack(parts)]
    return parts[0]

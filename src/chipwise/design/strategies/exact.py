"""Chooses one option for each part of a model under limits on total costs, by an exact integer programme.

No search is needed if a model's loss and costs are sums over its parts, such as the error, seconds and bytes of its
blocks. Scipy's solver HiGHS finds the proven optimum of this multiple-choice knapsack problem.

References:
    Multiple-choice knapsack: Kellerer, Pferschy and Pisinger 2004, Knapsack Problems, chapter 11.
    Choosing a network's blocks this way: Molchanov et al. 2022, LANA, arXiv:2107.10624.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.errors import Infeasible, InputError, MissingExtra


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option for a part: the loss it adds, and a mapping from the names of costs to their values."""

    loss: float
    costs: Mapping[str, float]

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.loss, *self.costs.values())):
            raise InputError(f"loss and costs of an option must be finite, not {self.loss} and {dict(self.costs)}")


def choose(parts: Sequence[Sequence[Option]], limits: Mapping[str, float]) -> list[int]:
    """Chooses the options, one for each part, with the least total loss among those whose total costs meet ``limits``.

    Raises:
        Infeasible: One limit is too strict for any choice (the message gives the least possible value), or no choice
            meets all limits together.
        InputError: A part has no options, or an option lacks a cost that has a limit.
        MissingExtra: scipy is not installed.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise MissingExtra("scipy", "search") from None
    _check(parts, limits)
    flat = [option for part in parts for option in part]
    part_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    one_each = (part_of[None] == np.arange(len(parts))[:, None]).astype(float)
    rules = [LinearConstraint(one_each, 1, 1)]
    for name, limit in limits.items():
        scale = max(abs(limit), 1e-300)  # scaled so that every limit is 1
        costs = np.array([option.costs[name] for option in flat])
        rules.append(LinearConstraint(costs[None] / scale, -np.inf, limit / scale))
    losses = np.array([option.loss for option in flat])
    spread = float(np.ptp(losses)) or 1.0
    with _solver_unheard():
        found = milp(losses / spread, constraints=rules, integrality=np.ones(len(flat)), bounds=Bounds(0, 1))
    if found.status == 2:
        raise Infeasible(f"no choice meets all limits together ({', '.join(limits)}); loosen one")
    if found.x is None:
        raise Infeasible(f"the solver found no solution: {found.message}")
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return [int(np.argmax(found.x[a:b])) for a, b in itertools.pairwise(starts)]


@contextlib.contextmanager
def _solver_unheard() -> Iterator[None]:
    """Hides lines that HiGHS prints to standard output, where commands print JSON."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _check(parts: Sequence[Sequence[Option]], limits: Mapping[str, float]) -> None:
    for number, part in enumerate(parts):
        if not part:
            raise InputError(f"part {number} has no option")
        for name in limits:
            if any(name not in option.costs for option in part):
                raise InputError(f"an option of part {number} lacks the cost {name}, which has a limit; state the cost")
    for name, limit in limits.items():
        least = sum(min(option.costs[name] for option in part) for part in parts)
        if least > limit:
            raise Infeasible(f"{name}: at least {least:.4g} is needed, but the limit is {limit:.4g}; raise the limit")

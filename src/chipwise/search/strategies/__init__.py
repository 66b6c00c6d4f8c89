"""The search strategies, by name."""

from __future__ import annotations

from typing import cast

from chipwise.core.tables import Table
from chipwise.search.strategy import Problem, Strategy

STRATEGIES = Table(
    "strategy",
    "chipwise.strategies",
    {
        "auto": "chipwise.search.strategies.auto:Auto",
        "random": "chipwise.search.strategies.random_search:RandomSearch",
        "evolution": "chipwise.search.strategies.evolution:Evolution",
    },
)


def make_strategy(name: str, problem: Problem, *, seed: int) -> Strategy:
    """The strategy called ``name`` for ``problem``.

    Raises:
        UnknownName: No strategy has this name.
    """
    return cast(Strategy, STRATEGIES.load(name)(problem, seed=seed))


__all__ = ["STRATEGIES", "make_strategy"]

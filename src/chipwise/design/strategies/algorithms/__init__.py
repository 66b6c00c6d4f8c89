"""The table of search strategies by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from chipwise.core.tables import Table
from chipwise.design.strategies.strategy import Problem, Strategy
from chipwise.design.strategies.wrappers import FullTrials, SoftLimits

STRATEGIES = Table(
    "strategy",
    "chipwise.strategies",
    {
        "auto": "chipwise.design.strategies.algorithms.auto:Auto",
        "random": "chipwise.design.strategies.algorithms.random_search:RandomSearch",
        "evolution": "chipwise.design.strategies.algorithms.evolution:Evolution",
        "grid": "chipwise.design.strategies.algorithms.grid:Grid",
        "tpe": "chipwise.design.strategies.algorithms.optuna_samplers:Tpe",
        "gp": "chipwise.design.strategies.algorithms.optuna_samplers:Gp",
        "vizier": "chipwise.design.strategies.algorithms.vizier_designers:Vizier",
        "reinforce": "chipwise.design.strategies.algorithms.reinforce:Reinforce",
        "gradient": "chipwise.design.strategies.algorithms.gradient:Gradient",
        "proxy": "chipwise.design.strategies.algorithms.proxy:Proxy",
        "halving": "chipwise.design.strategies.algorithms.halving:SuccessiveHalving",
        "asha": "chipwise.design.strategies.algorithms.halving:Asha",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInfo:
    """When a strategy is useful, and which optional package it needs."""

    when: str
    extra: str = ""


_INFO = {
    "auto": StrategyInfo(when="the default: screens by cost, learns quality with a Gaussian process"),
    "random": StrategyInfo(when="as a baseline"),
    "evolution": StrategyInfo(when="thousands of cheap trials (regularised evolution)"),
    "grid": StrategyInfo(when="small spaces, or to cover a space evenly"),
    "tpe": StrategyInfo(when="to compare with Optuna's default; few variables, one objective", extra="search"),
    "gp": StrategyInfo(when="to compare with black-box Bayesian optimisation; proposals are slow", extra="search"),
    "vizier": StrategyInfo(when="to compare with Google Vizier's designers (gp, eagle, nsga2)", extra="vizier"),
    "reinforce": StrategyInfo(when="to compare with reinforcement learning; needs thousands of trials"),
    "gradient": StrategyInfo(when="few trials, costs that nearly add up over choices; to compare with FBNet and DARTS"),
    "proxy": StrategyInfo(when="without training: explores the front of a prior and the costs"),
    "halving": StrategyInfo(when="successive halving: short trials rank designs well (needs fidelities)"),
    "asha": StrategyInfo(when="asynchronous successive halving, for workers of unequal speed (needs fidelities)"),
}


def strategy_info(name: str) -> StrategyInfo:
    """Says when the strategy ``name`` is useful; for a strategy of another package, this is its docstring's first line.

    Raises:
        UnknownName: No strategy has this name.
    """
    if name in _INFO:
        return _INFO[name]
    lines = (STRATEGIES.load(name).__doc__ or "").strip().splitlines()
    return StrategyInfo(when=lines[0] if lines else "(no description)")


def make_strategy(name: str, problem: Problem, *, seed: int, **options: object) -> Strategy:
    """Creates the strategy ``name`` for ``problem``; wraps it if it lacks support for soft limits or fidelities.

    Args:
        name: One of ``STRATEGIES``.
        problem: The search problem. Soft limits become penalties on the first objective; a strategy without
            ``fidelity_aware`` evaluates every design in full.
        seed: Random seed.
        options: Options of the strategy, such as ``population``.

    Raises:
        UnknownName: No strategy has this name.
        MissingExtra: The strategy needs a package that is not installed.
    """
    kind = STRATEGIES.load(name)

    def plain(one: Problem) -> Strategy:
        return cast(Strategy, kind(one, seed=seed, **options))

    def full(one: Problem) -> Strategy:
        if one.fidelities and not getattr(kind, "fidelity_aware", False):
            return FullTrials(one, plain)
        return plain(one)

    if any(limit.penalty is not None for limit in problem.limits):
        return SoftLimits(problem, full)
    return full(problem)


__all__ = ["STRATEGIES", "StrategyInfo", "make_strategy", "strategy_info"]

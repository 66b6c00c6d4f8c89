"""The search strategies, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from chipwise.core.tables import Table
from chipwise.optim.strategy import Problem, Strategy
from chipwise.optim.wrappers import FullTrials, SoftLimits

STRATEGIES = Table(
    "strategy",
    "chipwise.strategies",
    {
        "auto": "chipwise.optim.strategies.auto:Auto",
        "random": "chipwise.optim.strategies.random_search:RandomSearch",
        "evolution": "chipwise.optim.strategies.evolution:Evolution",
        "grid": "chipwise.optim.strategies.grid:Grid",
        "nsga2": "chipwise.optim.strategies.pymoo_genetic:Nsga2",
        "nsga3": "chipwise.optim.strategies.pymoo_genetic:Nsga3",
        "tpe": "chipwise.optim.strategies.optuna_samplers:Tpe",
        "gp": "chipwise.optim.strategies.optuna_samplers:Gp",
        "reinforce": "chipwise.optim.strategies.reinforce:Reinforce",
        "gradient": "chipwise.optim.strategies.gradient:Gradient",
        "proxy": "chipwise.optim.strategies.proxy:Proxy",
        "halving": "chipwise.optim.strategies.halving:Halving",
        "asha": "chipwise.optim.strategies.halving:Asha",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a person choosing a strategy wants to know: when it is the one to use, and which extra it needs."""

    when: str
    extra: str = ""


_ABOUT = {
    "auto": About(when="always, unless a row below says otherwise: free costs are screened, quality is learnt"),
    "random": About(when="as the yardstick; when nothing about the space is trusted"),
    "evolution": About(when="trials are cheap and come by the thousand (regularised evolution)"),
    "grid": About(when="the space is small enough to finish, or even coverage is the point"),
    "nsga2": About(when="two objectives, many cheap trials, a method that every reviewer knows", extra="pymoo"),
    "nsga3": About(when="three to five objectives and many cheap trials", extra="pymoo"),
    "tpe": About(when="to compare with Optuna's default; few variables, one objective", extra="search"),
    "gp": About(when="to compare with black-box Bayesian optimisation; minutes of thought are free", extra="search"),
    "reinforce": About(when="to compare with policy-gradient search; thousands of trials"),
    "gradient": About(when="costs nearly add up over choices and trials are few; to compare with FBNet and DARTS"),
    "proxy": About(when="nothing can be trained: the front of the stated prior and the costs, never learning"),
    "halving": About(when="short trials rank designs well and all workers are alike (needs fidelities)"),
    "asha": About(when="the same with workers that come and go (needs fidelities)"),
}


def about(name: str) -> About:
    """When to use the strategy called ``name``; of a third party's, the first line of its docstring.

    Raises:
        UnknownName: No strategy has this name.
    """
    if name in _ABOUT:
        return _ABOUT[name]
    lines = (STRATEGIES.load(name).__doc__ or "").strip().splitlines()
    return About(when=lines[0] if lines else "its author does not say")


def make_strategy(name: str, problem: Problem, *, seed: int, **options: Any) -> Strategy:
    """The strategy called ``name`` for ``problem``, whatever limits and fidelities that has.

    Args:
        name: One of ``STRATEGIES``.
        problem: What to search; soft limits become penalties, and a strategy that knows nothing of fidelities tries
            everything in full.
        seed: Of all random draws.
        options: Of the strategy itself, such as ``population``.

    Raises:
        UnknownName: No strategy has this name.
        MissingExtra: It needs a package that is not installed.
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


__all__ = ["STRATEGIES", "About", "about", "make_strategy"]

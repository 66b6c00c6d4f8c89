"""Search: problems, strategies that ask and tell, fronts, and the model of quality."""

from chipwise.search.acquisition import most_informative
from chipwise.search.optimise import Found, Outcome, optimise
from chipwise.search.pareto import crowding, hypervolume, knee, non_dominated, ranks
from chipwise.search.quality_model import QualityModel
from chipwise.search.strategies import STRATEGIES, About, about, make_strategy
from chipwise.search.strategy import Goal, Limit, Problem, Strategy

__all__ = [
    "STRATEGIES",
    "About",
    "Found",
    "Goal",
    "Limit",
    "Outcome",
    "Problem",
    "QualityModel",
    "Strategy",
    "about",
    "crowding",
    "hypervolume",
    "knee",
    "make_strategy",
    "most_informative",
    "non_dominated",
    "optimise",
    "ranks",
]

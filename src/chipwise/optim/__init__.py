"""Search: problems, strategies that ask and tell, fronts, and the model of quality."""

from chipwise.optim.acquisition import most_informative
from chipwise.optim.executors import Outcome
from chipwise.optim.optimise import Found, optimise
from chipwise.optim.pareto import crowding, hypervolume, knee, non_dominated, ranks
from chipwise.optim.quality_model import QualityModel
from chipwise.optim.strategies import STRATEGIES, About, about, make_strategy
from chipwise.optim.strategy import Goal, Limit, Problem, Strategy

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

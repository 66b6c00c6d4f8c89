"""Search: problems, strategies that ask and tell, fronts, and the model of quality."""

from chipwise.optim.acquisition import most_informative
from chipwise.optim.executors import Outcome
from chipwise.optim.optimise import SearchResult, optimise
from chipwise.optim.pareto import crowding, hypervolume, knee, non_dominated, ranks
from chipwise.optim.quality_model import QualityModel
from chipwise.optim.strategies import STRATEGIES, StrategyInfo, make_strategy, strategy_info
from chipwise.optim.strategy import Goal, Limit, Problem, Strategy
from chipwise.optim.tables import MeasuredTable, problem_from_table

__all__ = [
    "STRATEGIES",
    "Goal",
    "Limit",
    "MeasuredTable",
    "Outcome",
    "Problem",
    "QualityModel",
    "SearchResult",
    "Strategy",
    "StrategyInfo",
    "crowding",
    "hypervolume",
    "knee",
    "make_strategy",
    "most_informative",
    "non_dominated",
    "optimise",
    "problem_from_table",
    "ranks",
    "strategy_info",
]

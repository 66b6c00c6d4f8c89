"""Search spaces as integer rows, constraints, and prices of whole spaces."""

from chipwise.space.constraints import METRICS, Constraint, Objective, parse_constraints, parse_objectives
from chipwise.space.search_space import SearchSpace
from chipwise.space.space_spec import SpaceSpec

__all__ = [
    "METRICS",
    "Constraint",
    "Objective",
    "SearchSpace",
    "SpaceSpec",
    "parse_constraints",
    "parse_objectives",
]

"""Cost of operators on a machine: predictions with their bound and interval."""

from chipwise.cost.estimate import estimate
from chipwise.cost.model import Bound, CostEstimate, OpCost
from chipwise.cost.pricing import PRICE_COLUMNS, combine, op_price

__all__ = ["PRICE_COLUMNS", "Bound", "CostEstimate", "OpCost", "combine", "estimate", "op_price"]

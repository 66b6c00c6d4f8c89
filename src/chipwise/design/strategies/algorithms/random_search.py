"""Random search: the baseline for all other strategies."""

from chipwise.design.strategies.algorithms.base import BaseStrategy
from chipwise.design.strategies.strategy import Rows


class RandomSearch(BaseStrategy):
    """Random search: random rows of the space; rows that meet the limits that need no trial come first."""

    def propose(self, count: int) -> Rows:
        """Proposes no rows, so that :meth:`ask` returns only random ones."""
        return self.history.rows[:0]

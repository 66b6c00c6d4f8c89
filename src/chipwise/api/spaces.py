"""Search spaces and search strategies."""

from __future__ import annotations

from chipwise.design.limits import METRICS as METRICS
from chipwise.design.phases.overview import Overview as Overview
from chipwise.design.phases.overview import overview_of as overview_of
from chipwise.design.phases.overview import profile_of as profile_of
from chipwise.design.strategies.algorithms import STRATEGIES as STRATEGIES
from chipwise.design.strategies.algorithms import strategy_info as strategy_info
from chipwise.model.space.count import show_size as show_size

"""Fits the cost models that chipwise ships, and validates their predictions against measured rows.

The commands ``chipwise fit --from aiconfigurator`` and ``chipwise validate`` run what is here; nothing else of chipwise
needs it.
"""

from chipwise_fitting.commands import fit, validate
from chipwise_fitting.score import LeaveOut, Score

__all__ = ["LeaveOut", "Score", "fit", "validate"]

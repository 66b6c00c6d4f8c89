"""Trials in, one self-contained HTML file out; with a card and a CSV beside it."""

from chipwise.reporting.output import write
from chipwise.reporting.record import RunRecord, load, save

__all__ = ["RunRecord", "load", "save", "write"]

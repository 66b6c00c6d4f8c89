"""Trials in, one self-contained HTML file out; with a card and a CSV beside it."""

from chipwise.report.output import write
from chipwise.report.record import RunRecord, load, save

__all__ = ["RunRecord", "load", "save", "write"]

"""Reports of runs: one self-contained HTML file, a model card and a CSV file."""

from chipwise.reporting.output import write
from chipwise.reporting.record import RunRecord, load, save

__all__ = ["RunRecord", "load", "save", "write"]

"""The plots of a report, in the order of the page, one file each; figures are plain data."""

from __future__ import annotations

from chipwise.design.report.facts import by_law
from chipwise.design.report.plots import confusion, curves, front, promised
from chipwise.design.report.plots.common import Plot
from chipwise.design.report.record import RunRecord

__all__ = ["Plot", "draw"]


def draw(record: RunRecord) -> tuple[Plot, ...]:
    """All plots of the record. A plot without data says why; runs without training have no plots of trainings."""
    return (
        *([confusion.draw(record)] if record.tasks else []),
        front.draw(record),
        promised.draw(record),
        *([] if by_law(record) else [curves.draw(record)]),
    )

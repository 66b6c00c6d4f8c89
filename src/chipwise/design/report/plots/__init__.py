"""Draws the plots of a report in the order of the page, one module per plot; figures are plain data."""

from __future__ import annotations

from chipwise.design.report.facts import by_law
from chipwise.design.report.plots import confusion, curves, front, promised
from chipwise.design.report.plots.common import Plot
from chipwise.design.report.record import RunRecord

__all__ = ["Plot", "draw"]


def draw(record: RunRecord) -> tuple[Plot, ...]:
    """All plots of a record. Plots without data say why they are empty.

    Runs that train nothing have no plot of training curves.
    """
    return (
        *([confusion.draw(record)] if record.tasks else []),
        front.draw(record),
        promised.draw(record),
        *([] if by_law(record) else [curves.draw(record)]),
    )

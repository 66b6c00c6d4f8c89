"""Writes the readable files of a run: the page, the table of trials, the winner's card."""

from __future__ import annotations

from pathlib import Path

from chipwise.core.files import write_atomic
from chipwise.design.report import cut_pages
from chipwise.design.report.card import card
from chipwise.design.report.csvfile import trials_csv
from chipwise.design.report.html import page
from chipwise.design.report.record import RunRecord


def write(record: RunRecord, folder: str | Path) -> tuple[Path, Path, Path]:
    """Writes ``report.html``, ``trials.csv`` and ``card.md`` to ``folder`` atomically; returns their paths.

    Raises:
        StorageError: The disk is full or the folder cannot be written.
        MissingExtra: plotly is not installed.
    """
    home = Path(folder)
    html, table, text = home / "report.html", home / "trials.csv", home / "card.md"
    started = record.start is not None
    write_atomic(html, cut_pages.page(record) if started else page(record))
    write_atomic(table, trials_csv(record))
    write_atomic(text, cut_pages.card(record) if started else card(record))
    return html, table, text

"""A search that is run, or resumed, unless it has finished."""

from __future__ import annotations

from pathlib import Path

from chipwise import api
from chipwise.design.report.record import RunRecord, load
from chipwise.design.run.folder import holds_run
from chipwise.design.run.spec import RunSpec


def finished(spec: Path | RunSpec, folder: Path) -> RunRecord:
    """The record of the search of ``spec`` in ``folder``."""
    record = folder / "record.json"
    if not record.exists() or load(record).status != "finished":
        api.search(spec, out=folder, resume=holds_run(folder))
    return load(record)

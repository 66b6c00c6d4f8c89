"""Teaching a machine from a table of measured models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.arguments import public
from chipwise.deploy.teach.machine import Taught as Taught
from chipwise.deploy.teach.machine import teach_machine
from chipwise.deploy.teach.reading import map_of as map_of


@public
def teach(
    device: str,
    rows: str | Path | None = None,
    *,
    base: str | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    runtime: str | None = None,
    add: bool = False,
    keep: bool = True,
) -> Taught:
    """Learns a machine from measured models; it can then be named wherever a device can.

    Args:
        device: What the machine is called. Where a data sheet has that name, the profile is called ``NAME-taught``.
        rows: A CSV file (also ``.gz``) with a model and a time or rate in each row, JSON lines of
            ``chipwise measurements export``, or ``"measurements"`` for this user's store. None: the data sheet alone.
        base: The data sheet that is nearest to the machine. Default: the sheet of that name, or the profile's own.
        columns: Column -> field, where the names of columns say too little: ``{"lat": "total_ms"}``.
        where: Column -> value: only rows that have it.
        runtime: The runtime of rows that name none. Default: the device's own.
        add: Learn from the rows of the newest version too.
        keep: Whether to save the profile, as its next version.

    Raises:
        SpecError: The table is missing, empty, lacks a column or a unit, or holds no row that can be used.
        UnknownName: There is no such data sheet, column or field.
        InputError: A base is needed, or the rows are of another machine.
    """
    return teach_machine(device, rows, base=base, mapped=columns, where=where, runtime=runtime, add=add, keep=keep)

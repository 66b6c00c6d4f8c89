"""Teaches a machine from a table of measured models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chipwise.core.arguments import public
from chipwise.deploy.teach.machine import Taught, teach_machine


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
    """Learns a machine from measured models; its name can then be used as a device.

    Args:
        device: Name for the machine. If a data sheet has that name, the profile is called ``NAME-taught``.
        rows: A CSV file (also ``.gz``) with a model and a time or rate in each row, JSON lines of
            ``chipwise measurements export``, or ``"measurements"`` for this user's store. None: only the data sheet.
        base: The data sheet most similar to the machine. Default: the sheet of that name, or the base of the earlier
            profile.
        columns: Column -> field, if column names are not recognised: ``{"lat": "total_ms"}``.
        where: Column -> value: use only rows with this value.
        runtime: The runtime for rows that do not name one. Default: the device's own.
        add: Also use the rows of the newest version.
        keep: Whether to save the profile, as its next version.

    Raises:
        SpecError: The table is missing or empty, lacks a column or a unit, or has no usable row.
        UnknownName: There is no such data sheet, column or field.
        InputError: A base is needed, or the rows are from another machine.
    """
    return teach_machine(device, rows, base=base, mapped=columns, where=where, runtime=runtime, add=add, keep=keep)

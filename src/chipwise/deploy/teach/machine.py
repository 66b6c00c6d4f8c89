"""Fits a table of measured models to a profile that can be used like a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.results import Result
from chipwise.deploy.teach.checks import Checked, Flag, check, whole_table
from chipwise.deploy.teach.files import are_files, results_of
from chipwise.deploy.teach.observations import MeasuredRow, observe, prior_deviation
from chipwise.deploy.teach.posterior import LABEL_SD, TAIL, fit
from chipwise.deploy.teach.reading import TableRead, from_record, read_table, to_record
from chipwise.deploy.teach.tails import tails_of
from chipwise.errors import InputError, SpecError, UnknownName, counted
from chipwise.hardware import datasheet, taught
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import Teaching
from chipwise.predict.served.taught_pass import TERMS, matrix, sequence

SHEET = "-taught"  # suffix if a profile would have the name of a shipped data sheet
MOST_ROWS = 10_000  # maximum number of rows that are fitted at once
MOST_RECORDS = 2000  # maximum number of rows that a profile stores for its next version


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Taught(Result):
    """Result of teaching a machine.

    Attributes:
        teaching: The profile.
        path: Its file; None if it was not saved.
        columns: Interpretation of the table's columns, one line per field.
        problems: Maps the numbers of unusable lines to reasons.
        flags: Rows that contradict the other rows, worst first.
        warnings: Problems of the table as a whole.
        notes: Other remarks.
    """

    teaching: Teaching
    path: Path | None = None
    columns: tuple[str, ...] = ()
    problems: Mapping[int, str] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The machine's name, for ``estimate --device NAME``."""
        return self.teaching.name

    def headline(self) -> str:
        """The machine, its rows and its error."""
        found = self.teaching
        error = (
            "" if found.check is None else f", mean error {units.show(found.check.mean, 'share')} on models left out"
        )
        taught = counted(len(found.files), "file") if found.files else counted(found.rows, "row")
        return f"{found.label}: taught from {taught} on {found.base}{error}"

    def rows(self) -> list[Mapping[str, object]]:
        """One entry for each measured time that contradicts the table's other rows."""
        return [plain(flag) for flag in self.flags]

    def summary(self) -> dict[str, object]:
        """A summary for programs, in SI units; the profile itself is in its file."""
        found = self.teaching
        return {
            "name": found.name,
            "version": found.version,
            "base": found.base,
            "rows": found.rows,
            "files": len(found.files),
            "path": None if self.path is None else str(self.path),
            "check": plain(found.check),
            "noise": found.noise or None,
            "columns": list(self.columns),
            "problems": {str(line): why for line, why in self.problems.items()},
            "flags": plain(self.flags),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


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
        rows: A CSV file (also ``.gz``) with a model and a time or rate in each row, a kit's results, JSON lines of
            ``chipwise measurements export``, or ``"measurements"`` for this user's store. None: only the data sheet.
            The rows may be of ONNX files, with times of a pass; then the CPU, GPU or NPU that ran them is learnt. This
            needs five or more files in one format.
        base: The data sheet most similar to the machine. Default: the sheet of that name, or the base of the earlier
            profile.
        columns: Maps columns to fields, for column names that are not recognised: ``{"lat": "total_ms"}``.
        where: Maps columns to values; only rows with these values in these columns are used.
        runtime: The runtime for rows that do not name one. Default: the device's own.
        add: Also use the rows of the profile's newest version.
        keep: Whether to save the profile, as its next version.

    Raises:
        SpecError: The table is missing or empty, lacks a column or a unit, or has no usable row.
        UnknownName: There is no such data sheet, column or field.
        InputError: A base is needed, or the rows are from another machine.
    """
    own, sheet = _named(device, base)
    earlier = taught.load(own)
    version = (taught.versions(own) or [0])[-1] + 1
    if add and earlier is None:
        raise InputError(f"--add: {own} has no earlier version to add to; leave --add out")
    untaught = Teaching(name=own, version=version, created=_now(), base=sheet.name, rows=0)
    if rows is None:
        return Taught(teaching=untaught, path=untaught.save() if keep else None)
    table, notes = _table(rows, device, sheet, columns, where, runtime)
    machine = ", ".join(table.machines)
    if earlier is not None and machine and earlier.machine and machine != earlier.machine:
        raise InputError(
            f"{own} was taught from rows of {earlier.machine}, but these are of {machine}; teach {machine} under a "
            "different name"
        )
    measured = [*map(from_record, earlier.records if add and earlier is not None else ()), *table.rows]
    if are_files(table.rows, str(rows)):
        had = earlier.files if add and earlier is not None else ()
        results, problems = results_of(table, sheet, earlier=had, source=str(rows))
        kept = earlier if earlier is not None and earlier.base == sheet.name else untaught
        teaching = replace(kept, version=version, created=_now(), files=results)
        learnt = Taught(teaching=teaching, problems=problems)
    else:
        learnt = _learn(own, sheet, version, measured, machine=machine, source=str(rows))
        if earlier is not None and earlier.base == learnt.teaching.base:
            learnt = replace(learnt, teaching=replace(learnt.teaching, files=earlier.files))
    return replace(
        learnt,
        path=learnt.teaching.save() if keep else None,
        columns=() if table.columns is None else tuple(table.columns.sentences()),
        problems={**table.problems, **learnt.problems},
        flags=tuple(sorted(learnt.flags, key=lambda each: -abs(np.log(each.measured_s / each.expected_s)))),
        notes=(*notes, *table.notes),
    )


def teach_rows(sheet: DeviceProfile, rows: Sequence[MeasuredRow], *, name: str, source: str) -> Teaching:
    """Fits a machine similar to ``sheet`` to measured rows, without saving it.

    Raises:
        SpecError: No row can be used.
    """
    return _learn(name, sheet, 1, rows, machine="", source=source).teaching


def _named(device: str, base: str | None) -> tuple[str, DeviceProfile]:
    """The name of the profile, and its base data sheet."""
    if "@" in device:
        raise InputError(f"{device!r:.60}: versions are numbered automatically; name the machine without @")
    own = taught.key(device)
    try:
        sheet = datasheet.load(device)
        if sheet.taught is None:
            own = taught.key(sheet.name + SHEET)
    except UnknownName as error:
        if base is None:
            raise InputError(
                f"{error}; to teach a new machine of this name, add --base with the data sheet of the most similar "
                "device, such as --base raspberry-pi-4"
            ) from None
    earlier = taught.load(own)
    chosen = base or (device if earlier is None else earlier.base)
    return own, replace(datasheet.load(chosen), taught=None)


def _table(
    source: str | Path,
    device: str,
    sheet: DeviceProfile,
    mapped: Mapping[str, str] | None,
    where: Mapping[str, str] | None,
    runtime: str | None,
) -> tuple[TableRead, list[str]]:
    """The table's rows of one machine: those selected by the user, those with the machine's name, or all."""
    table = read_table(source, mapped=mapped, where=where, runtime=runtime, most=MOST_ROWS)
    if len(table.machines) <= 1:
        return table, []
    names = {taught.key(each): each for each in table.machines}
    own = names.get(taught.key(device)) or names.get(taught.key(sheet.name))
    column = "device" if table.columns is None else table.columns.fields["machine"]
    if own is None or (where and column in where):
        listed = ", ".join(table.machines[:8]) + (", …" if len(table.machines) > 8 else "")
        raise SpecError(
            f"holds rows of {len(table.machines)} machines ({listed}); choose one: --where {column}=NAME",
            file=str(source),
            field=column,
        )
    table = read_table(source, mapped=mapped, where={**(where or {}), column: own}, runtime=runtime, most=MOST_ROWS)
    return table, [f"of the {len(names)} machines in the table, only the rows of {own} are used"]


def _no_better(checked: Checked) -> list[str]:
    """A warning if the data sheet alone is as accurate as the fit."""
    error = checked.error
    if error is None or error.sheet_mean is None or error.mean < error.sheet_mean:
        return []
    taught_error, sheet_error = (units.show(each, "share") for each in (error.mean, error.sheet_mean))
    return [
        f"on left-out models the data sheet alone is as accurate ({sheet_error} against {taught_error} once taught): "
        "the rows disagree with each other, or are of settings that no column distinguishes"
    ]


def _learn(
    name: str, sheet: DeviceProfile, version: int, rows: Sequence[MeasuredRow], *, machine: str, source: str
) -> Taught:
    seen, errors = observe(rows, sheet)
    problems = {rows[i].number: " ".join(str(each).split()) for i, each in errors.items()}
    if not len(seen):
        line, why = next(iter(problems.items()))
        raise SpecError(f"none of {counted(len(rows), 'row')} can be used; line {line}: {why}", file=source)
    checked = check(rows, seen)
    posterior = fit(seen, common=prior_deviation(seen))
    variants = [row.variant for row in rows]
    usual = max(dict.fromkeys(variants), key=variants.count)
    teaching = Teaching(
        name=name,
        version=version,
        created=_now(),
        base=next(row for row in rows if row.variant == usual).sheet(sheet).name,
        machine=machine,
        rows=len(set(seen.rows.tolist())),
        terms=TERMS,
        units=sequence(posterior.frame.units),
        labels=posterior.frame.labels,
        label_sd=LABEL_SD,
        mean=sequence(posterior.theta),
        covariance=matrix(posterior.covariance),
        noise=posterior.noise,
        widen=TAIL * checked.widen,
        variant=usual,
        check=checked.error,
        source=source,
        tails=tails_of(rows),
        records=tuple(to_record(row) for row in rows[-MOST_RECORDS:]),
    )
    warnings = (*whole_table(seen), *_no_better(checked))
    return Taught(teaching=teaching, problems=problems, flags=checked.flags, warnings=warnings)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

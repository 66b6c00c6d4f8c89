"""Teaches a machine: turns a table of measured models into a profile that can be named like a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.results import Result
from chipwise.deploy.teach.checks import Checked, Flag, check, whole_table
from chipwise.deploy.teach.observations import MeasuredRow, observe, prior_deviation
from chipwise.deploy.teach.posterior import TAIL, Posterior, fit
from chipwise.deploy.teach.reading import TableRead, from_record, read_table, to_record
from chipwise.errors import InputError, SpecError, UnknownName, counted
from chipwise.hardware import datasheet, taught
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import Teaching
from chipwise.predict.served.taught_pass import TERMS, matrix, sequence

SHEET = "-taught"  # suffix of a profile's name that would equal a shipped data sheet's
MOST_ROWS = 10_000  # that are learnt from at once
MOST_RECORDS = 2000  # rows that a profile keeps for the next version


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Taught(Result):
    """Result of teaching a machine.

    Attributes:
        teaching: The profile.
        path: Its file; None if it was not kept.
        columns: How the table's columns were read, one line per field.
        problems: Line -> why it could not be used.
        flags: Rows that contradict the others, worst first.
        warnings: What looks wrong with the whole table.
        notes: Other remarks.
    """

    teaching: Teaching
    path: Path | None
    columns: tuple[str, ...]
    problems: Mapping[int, str]
    flags: tuple[Flag, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

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
        return f"{found.label}: taught from {counted(found.rows, 'row')} on {found.base}{error}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row a time that contradicts the others."""
        return [plain(flag) for flag in self.flags]

    def summary(self) -> dict[str, object]:
        """A summary for programs, in SI units; the profile itself is in its file."""
        found = self.teaching
        return {
            "name": found.name,
            "version": found.version,
            "base": found.base,
            "rows": found.rows,
            "path": None if self.path is None else str(self.path),
            "check": plain(found.check),
            "noise": found.noise or None,
            "columns": list(self.columns),
            "problems": {str(line): why for line, why in self.problems.items()},
            "flags": plain(self.flags),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def teach_machine(
    name: str,
    source: str | Path | None = None,
    *,
    base: str | None = None,
    mapped: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    runtime: str | None = None,
    add: bool = False,
    keep: bool = True,
) -> Taught:
    """Teaches the machine ``name`` from a table, as the next version of its profile.

    Args:
        name: The machine's name; ``-taught`` is appended if a shipped data sheet has it.
        source: A CSV file, JSON lines of ``measurements export``, or ``measurements`` for the user's own store. None:
            the data sheet under a new name.
        base: The data sheet underneath. Default: that of the profile's earlier versions, or the sheet of that name.
        mapped: Column -> field, where names of columns say too little.
        where: Column -> value of the rows to use.
        runtime: Runtime of rows that name none.
        add: Whether the rows of the newest version count too.
        keep: Whether to save the profile.

    Raises:
        SpecError: The table is wrong.
        InputError: The base is missing, or rows are of another machine than the profile's.
        UnknownName: There is no such base, column or field.
    """
    own, sheet = _named(name, base)
    earlier = taught.load(own)
    version = (taught.versions(own) or [0])[-1] + 1
    if add and earlier is None:
        raise InputError(f"--add: {own} has no earlier version to add to; leave it out")
    if source is None:
        teaching = Teaching(name=own, version=version, created=_now(), base=sheet.name, rows=0)
        return Taught(
            teaching=teaching, path=teaching.save() if keep else None, columns=(), problems={}, flags=(), warnings=(),
            notes=(),
        )  # fmt: skip
    table, notes = _table(source, name, sheet, mapped, where, runtime)
    machine = ", ".join(table.machines)
    _same_machine(earlier, machine, own)
    rows = list(table.rows)
    if add and earlier is not None:
        rows = [*map(from_record, earlier.records), *rows]
    seen, errors = observe(rows, sheet)
    problems = dict(table.problems) | {rows[i].number: " ".join(str(each).split()) for i, each in errors.items()}
    if not len(seen):
        line, why = next(iter(problems.items()))
        raise SpecError(f"none of {counted(len(rows), 'row')} can be used; line {line}: {why}", file=str(source))
    checked = check(rows, seen)
    posterior = fit(seen, common=prior_deviation(seen))
    teaching = _profile(own, sheet, version, posterior, checked, rows, machine=machine, source=str(source))
    return Taught(
        teaching=teaching,
        path=teaching.save() if keep else None,
        columns=() if table.columns is None else tuple(table.columns.sentences()),
        problems=problems,
        flags=tuple(sorted(checked.flags, key=lambda each: -abs(np.log(each.measured_s / each.expected_s)))),
        warnings=(*whole_table(seen), *_no_better(checked)),
        notes=(*notes, *table.notes),
    )


def teach_rows(sheet: DeviceProfile, rows: Sequence[MeasuredRow], *, name: str, source: str) -> Teaching:
    """Teaches a machine near ``sheet`` from measured rows, without saving it.

    Raises:
        InputError: No row can be used.
    """
    seen, errors = observe(list(rows), sheet)
    if not len(seen):
        raise InputError(f"nothing can be learnt from {source}: {next(iter(errors.values()))}")
    posterior = fit(seen, common=prior_deviation(seen))
    checked = check(list(rows), seen)
    return _profile(name, sheet, 1, posterior, checked, rows, machine="", source=source)


def _named(name: str, base: str | None) -> tuple[str, DeviceProfile]:
    """The name of the profile, and its base data sheet."""
    if not name.strip():
        raise InputError("name the machine, such as shop-box")
    if "@" in name:
        raise InputError(f"{name!r:.60}: versions are counted by themselves; name the machine without @")
    own = taught.key(name)
    try:
        sheet = datasheet.load(name)
        if sheet.taught is None:
            own = taught.key(sheet.name + SHEET)
    except UnknownName as error:
        if base is None:
            raise InputError(
                f"{error}; to teach a machine of this name, add --base and the data sheet that is nearest to it, such "
                "as --base raspberry-pi-4"
            ) from None
        sheet = datasheet.load(base)
    chosen = sheet if base is None else datasheet.load(base)
    if chosen.taught is not None:
        chosen = replace(chosen, taught=None)
    earlier = taught.load(own)
    if base is None and earlier is not None:
        chosen = datasheet.load(earlier.base)
    return own, chosen


def _table(
    source: str | Path,
    name: str,
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
    own = next((names[key] for key in (taught.key(name), taught.key(sheet.name)) if key in names), None)
    column = "device" if table.columns is None else table.columns.fields["machine"]
    if own is None or (where and column in where):
        listed = ", ".join(table.machines[:8]) + (", …" if len(table.machines) > 8 else "")
        raise SpecError(
            f"holds rows of {len(table.machines)} machines ({listed}); say which: --where {column}=NAME",
            file=str(source),
            field=column,
        )
    table = read_table(source, mapped=mapped, where={**(where or {}), column: own}, runtime=runtime, most=MOST_ROWS)
    return table, [f"of {len(names)} machines in the table, the rows of {own}"]


def _no_better(checked: Checked) -> list[str]:
    """A warning if the data sheet alone is as accurate."""
    error = checked.error
    if error is None or error.sheet_mean is None or error.mean < error.sheet_mean:
        return []
    taught_error, sheet_error = (units.show(each, "share") for each in (error.mean, error.sheet_mean))
    return [
        f"on models left out the data sheet alone is as near ({sheet_error} against {taught_error} once taught): the "
        "rows disagree with each other, or are of settings that the table does not tell apart"
    ]


def _same_machine(earlier: Teaching | None, machine: str, name: str) -> None:
    if earlier is not None and machine and earlier.machine and machine != earlier.machine:
        raise InputError(
            f"{name} was taught from rows of {earlier.machine}, and these are of {machine}; teach it under a name of "
            "its own"
        )


def _profile(
    name: str,
    sheet: DeviceProfile,
    version: int,
    posterior: Posterior,
    checked: Checked,
    rows: Sequence[MeasuredRow],
    *,
    machine: str,
    source: str,
) -> Teaching:
    frame, strengths = posterior.frame, posterior.strengths
    variants = [row.variant for row in rows]
    usual = max(dict.fromkeys(variants), key=variants.count)
    base = next(row for row in rows if row.variant == usual).sheet(sheet).name
    return Teaching(
        name=name,
        version=version,
        created=_now(),
        base=base,
        machine=machine,
        rows=len({int(i) for i in frame.seen.rows}),
        terms=TERMS,
        units=sequence(frame.units),
        labels=frame.labels,
        label_sd=strengths.label,
        mean=sequence(posterior.theta),
        covariance=matrix(posterior.covariance),
        noise=strengths.noise,
        widen=TAIL * checked.widen,
        variant=usual,
        check=checked.error,
        source=source,
        records=tuple(to_record(row) for row in rows[-MOST_RECORDS:]),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

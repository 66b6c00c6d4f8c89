"""Teaches a machine: turns a table of measured models into a profile that can be named like a device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core import units
from chipwise.core.csvfile import write_rows
from chipwise.core.digest import plain
from chipwise.core.results import Result
from chipwise.deploy.teach.checks import Checked, Flag, check, whole_table
from chipwise.deploy.teach.choosing_rows import Proposal, propose, remeasure, usual_candidates
from chipwise.deploy.teach.drift import Drifted, drift_covariance, follow
from chipwise.deploy.teach.observations import MeasuredRow, observe, prior_deviation
from chipwise.deploy.teach.posterior import TAIL, Posterior, fit, untaught
from chipwise.deploy.teach.reading import TableRead, from_record, read_table, to_record
from chipwise.errors import InputError, SpecError, UnknownName, counted
from chipwise.hardware import datasheet, taught
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import Teaching
from chipwise.predict.served.taught_pass import TERMS, matrix, sequence

SHEET = "-taught"  # suffix of a profile's name that would equal a shipped data sheet's
AGAIN = (
    "model", "runtime", "weights", "kv", "batch", "prompt_tokens", "new_tokens", "context", "variant", "ttft_s",
    "tpot_s", "total_s",
)  # fmt: skip
MOST_ROWS = 10_000  # that are learnt from at once
MOST_RECORDS = 2000  # rows that a profile keeps for the next version


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Taught(Result):
    """Result of teaching a machine.

    Attributes:
        teaching: The profile.
        path: Its file; None where it was not kept.
        columns: How the table's columns were read, one line per field.
        problems: Line -> why it could not be used.
        flags: Rows that contradict the others, worst first.
        warnings: What looks wrong with the whole table.
        notes: Other remarks.
        proposals: The measurements that would teach most.
        again: The rows to measure again on another day, to correct for drift.
        drift: Drift of a second day, if its rows were given.
    """

    teaching: Teaching
    path: Path | None
    columns: tuple[str, ...]
    problems: Mapping[int, str]
    flags: tuple[Flag, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    again: tuple[MeasuredRow, ...]
    drift: Drifted | None = None

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
        """One row a proposed measurement."""
        return [
            {
                "model": each.row.name,
                "runtime": each.row.runtime,
                "weights": each.row.weights,
                "prompt_tokens": each.row.prompt_tokens,
                "new_tokens": each.row.new_tokens,
                "quantity": each.quantity,
                "expected_s": each.expected_s,
            }
            for each in self.proposals
        ]

    def summary(self) -> dict[str, Any]:
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
            "proposals": [dict(row) for row in self.rows()],
            "again": [row.number for row in self.again],
            "drift": None
            if self.drift is None
            else {name: getattr(self.drift, name) for name in ("rows", "matched", "factor", "before", "after")},
        }


def write_again(path: Path, rows: Sequence[MeasuredRow]) -> None:
    """Writes rows to be measured again as a CSV file whose times are left empty.

    Raises:
        InputError: There are none.
        StorageError: The file cannot be written.
    """
    if not rows:
        raise InputError("--again: there are no rows to measure again; it needs --from")
    records = [to_record(row) for row in rows]
    for record in records:
        if isinstance(record["model"], Mapping):
            record["model"] = json.dumps(record["model"])
    write_rows(path, records, AGAIN)


def teach_machine(
    name: str,
    source: str | Path | None = None,
    *,
    base: str | None = None,
    mapped: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    runtime: str | None = None,
    add: bool = False,
    drift_from: str | Path | None = None,
    keep: bool = True,
    propose_more: bool = True,
) -> Taught:
    """Teaches the machine ``name`` from a table, as the next version of its profile.

    Args:
        name: The machine's name; ``-taught`` is appended if a shipped data sheet has it.
        source: A CSV file, JSON lines of ``measurements export``, or ``measurements`` for the user's own store. None:
            the data sheet under a new name.
        base: The data sheet underneath. Default: that of the profile's earlier versions, or the sheet of that name.
        mapped: Column -> field, where names of columns say too little.
        where: Column -> value of the rows to use.
        runtime: Of rows that name none.
        add: Whether the rows of the newest version count too.
        drift_from: Rows measured again: the newest version (or the one taught here) is corrected to their day.
        keep: Whether to save the profile.
        propose_more: Whether to propose further measurements.

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
    if source is None and drift_from is not None and earlier is not None:
        followed, table = _followed(earlier, sheet, drift_from, mapped, where, runtime, version)
        path = followed.teaching.save() if keep else None
        return _result(followed.teaching, path, table, (), drift=followed)
    if source is None:
        return _untaught(own, sheet, version, keep=keep, propose_more=propose_more)
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
    again = remeasure(posterior, drift_covariance(len(teaching.labels), len(teaching.points)), rows)
    proposals = propose(posterior, rows, sheet, widen=checked.widen) if propose_more else []
    drifted: Drifted | None = None
    if drift_from is not None:
        drifted, _ = _followed(teaching, sheet, drift_from, mapped, where, runtime, version + 1)
    path = teaching.save() if keep else None
    if drifted is not None:
        teaching = drifted.teaching
        path = teaching.save() if keep else None
    found = _result(teaching, path, table, tuple(proposals), drift=drifted)
    return replace(
        found,
        problems=problems,
        flags=tuple(sorted(checked.flags, key=lambda each: -abs(np.log(each.measured_s / each.expected_s)))),
        warnings=(*whole_table(seen), *_no_better(checked)),
        notes=(*notes, *table.notes),
        again=tuple(again),
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
    try:
        sheet: DeviceProfile | None = datasheet.load(name)
    except UnknownName as error:
        sheet = None
        if base is None:
            raise InputError(
                f"{error}; to teach a machine of this name, add --base and the data sheet that is nearest to it, such "
                "as --base raspberry-pi-4"
            ) from None
    own = taught.key(name)
    if sheet is not None and sheet.taught is None:
        own = taught.key(sheet.name + SHEET)
    chosen = datasheet.load(base) if base is not None else sheet
    assert chosen is not None
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


def _followed(
    teaching: Teaching,
    sheet: DeviceProfile,
    source: str | Path,
    mapped: Mapping[str, str] | None,
    where: Mapping[str, str] | None,
    runtime: str | None,
    version: int,
) -> tuple[Drifted, TableRead]:
    table, _ = _table(source, teaching.name, sheet, mapped, where, runtime)
    _same_machine(teaching, ", ".join(table.machines), teaching.name)
    return follow(teaching, table.rows, sheet, version=version), table


def _untaught(name: str, sheet: DeviceProfile, version: int, *, keep: bool, propose_more: bool) -> Taught:
    """The data sheet under the new name, with the measurements to make first."""
    teaching = Teaching(name=name, version=version, created=_now(), base=sheet.name, rows=0)
    proposals: list[Proposal] = []
    if propose_more:
        like = [MeasuredRow(number=0, model=each) for each in ("HuggingFaceTB/SmolLM2-135M", "meta-llama/Llama-3.1-8B")]
        candidates = usual_candidates(like, sheet)
        asked, _ = observe(candidates, sheet, quantities=["total"])
        if len(asked):
            posterior = untaught(asked, common=prior_deviation(asked))
            proposals = propose(posterior, candidates, sheet, candidates=candidates)
    path = teaching.save() if keep else None
    return Taught(
        teaching=teaching, path=path, columns=(), problems={}, flags=(), warnings=(), notes=(),
        proposals=tuple(proposals), again=(),
    )  # fmt: skip


def _result(
    teaching: Teaching, path: Path | None, table: TableRead, proposals: tuple[Proposal, ...], *, drift: Drifted | None
) -> Taught:
    columns = () if table.columns is None else tuple(table.columns.sentences())
    return Taught(
        teaching=teaching, path=path, columns=columns, problems=table.problems, flags=(), warnings=(),
        notes=table.notes, proposals=proposals, again=(), drift=drift,
    )  # fmt: skip


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
        points=matrix(frame.points),
        amplitude=strengths.amplitude,
        reach=strengths.reach,
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

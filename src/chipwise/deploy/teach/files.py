"""Turns measurements of ONNX files into results that a taught profile stores for the CPU, GPU or NPU that ran them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from chipwise.core.extras import require
from chipwise.deploy.graphs.inputs import parse_shapes, parse_values
from chipwise.deploy.teach.observations import PARTS, MeasuredRow
from chipwise.deploy.teach.reading import ONNX, TableRead
from chipwise.errors import ChipwiseError, InputError, SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import FileResult
from chipwise.model import graphs as reading
from chipwise.predict.graphs.chips import INSTEAD, NPU, runtime_key
from chipwise.predict.graphs.law import works_of
from chipwise.predict.graphs.npu_chips import CHIPS, chip_named
from chipwise.predict.graphs.npu_law import sums_of
from chipwise.predict.graphs.npus import npu_of
from chipwise.predict.graphs.pricing import by_sheet
from chipwise.predict.graphs.taught import RESULTS


def are_files(rows: Sequence[MeasuredRow], source: str) -> bool:
    """Whether the rows are of ONNX files.

    Raises:
        SpecError: Only some of the rows are of ONNX files.
    """
    files = [row for row in rows if isinstance(row.model, str) and row.model.lower().endswith(ONNX)]
    if files and len(files) < len(rows):
        raise SpecError("holds ONNX files and other models; teach each kind from a separate table", file=source)
    return bool(files)


def results_of(
    table: TableRead, sheet: DeviceProfile, *, earlier: Sequence[FileResult], source: str
) -> tuple[tuple[FileResult, ...], Mapping[int, str]]:
    """Returns the ``earlier`` results and those of a table, and the error of each line that gives no result.

    Args:
        table: Measured files.
        sheet: The data sheet of the chip.
        earlier: Results stored in the profile's previous version.
        source: The table, for messages.

    Raises:
        InputError: The table is from a different chip.
        SpecError: No number format has the results of enough files.
        MissingExtra: ONNX Runtime is not installed.
    """
    require("onnxruntime")
    chip = chip_named(sheet.name)
    for machine in table.machines:
        if (named := chip_named(machine)) in CHIPS.values() and named != chip:
            raise InputError(f"{source}: its results are from {machine} ({named.name}), but the base is {chip.name}")
    found, problems = list(earlier), dict(table.problems)
    for row in table.rows:
        try:
            found.append(_result(row, sheet))
        except ChipwiseError as error:
            problems[row.number] = " ".join(str(error).split())
    counts = Counter(where for _, where in {(each.model, _where(each)) for each in found})
    if max(counts.values(), default=0) < RESULTS:
        have = ", ".join(f"{count} in {name}" for name, count in sorted(counts.items())) or "none"
        why = next((f"; line {line}: {problem}" for line, problem in problems.items()), "")
        raise SpecError(
            f"teaching a chip needs results of at least {RESULTS} files in one format; there are {have}{why}",
            file=source,
        )
    return tuple(found), problems


def _where(result: FileResult) -> str:
    """Text with the number format of a result and, except on NPUs, the part and the runtime."""
    part = f" on {result.part}" if result.part else ""
    return result.precision if result.part == NPU else f"{result.precision}{part} in {result.runtime}"


def _result(row: MeasuredRow, sheet: DeviceProfile) -> FileResult:
    if row.total_s is None:
        raise SpecError("needs the time of a pass, such as latency_ms")
    shapes, values = ([part for part in text.split(";") if part.strip()] for text in (row.shape, row.value))
    graph = reading.read_graph(row.name, parse_shapes(shapes), parse_values(values))
    if graph.uncounted:
        raise Unsupported(f"{row.name}: the work of {graph.uncounted[0].op_type} cannot be counted")
    used = _part(row, sheet)
    npu = npu_of(used, graph, runtime=row.runtime, weights=row.weights)
    if npu is not None:
        amounts = sums_of(graph.ops, npu.precision)
        return FileResult(
            model=row.name, amounts=amounts, runtime=npu.runtime, precision=npu.precision, seconds=row.total_s
        )
    weights = None if row.weights is None else row.weights.strip().lower()
    if weights not in (None, *INSTEAD):
        raise UnknownName("number format", weights, INSTEAD)
    return FileResult(
        model=row.name,
        amounts=works_of(graph.ops, by_sheet(used, graph, weights).shrink),
        runtime=runtime_key(row.runtime),
        precision=weights or graph.dtype,
        seconds=row.total_s,
        part=used.name.partition(":")[2],
    )


def _part(row: MeasuredRow, sheet: DeviceProfile) -> DeviceProfile:
    """The part of the chip that the row's variant names, with as many cores as threads."""
    found: DeviceProfile | None = sheet
    for word in row.variant.lower().split("/"):
        if word in PARTS and found is not None:
            found = datasheet.with_part(found, word)
        if found is None:
            raise InputError(f"ran on the {word.upper()}, but {sheet.name} has none; name another --base")
        if threads := re.fullmatch(r"(\d+)(?: threads?)?", word):
            found = datasheet.with_cores(found, int(threads[1]))
    return found or sheet

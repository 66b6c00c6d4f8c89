"""Reads tables of measured models: CSV files (also gzipped), results of kits, exported measurements, or the store."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chipwise.core import units
from chipwise.core.csvfile import MOST_TABLE_BYTES, whole
from chipwise.core.digest import plain
from chipwise.core.dtypes import FORMATS, format_name
from chipwise.core.files import parse_json, read_text
from chipwise.deploy.kits.kits import KitModel, is_kit, read_results, sha256_of
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore, Stored
from chipwise.deploy.teach.architectures import MODEL_COLUMNS, PAIR_COLUMNS, described
from chipwise.deploy.teach.columns import RATES, TIMES, Columns, find_columns
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.deploy.teach.tails import tail_ratio
from chipwise.errors import ChipwiseError, InputError, SpecError, UnitError, UnknownName, counted, short
from chipwise.hardware.runtime import RUNTIMES, runtime_named
from chipwise.model.arch import io as spec_io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import from_config, resolve

ONNX = ".onnx"
STORE = "measurements"  # source name of the user's own store
Models = dict[tuple[str, ...], tuple[str | ArchSpec, str | None]]
"""Cache of models by the cells that describe them, with the format of their checkpoints."""
MOST_LINES = 200_000  # lines in a file
LONGEST_S, SHORTEST_S = 1e6, 1e-9  # times outside this range are typing errors
DOUBTFUL = re.compile(r"^(?:doubtful|bad|invalid|outlier)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """Contents of a table.

    Attributes:
        rows: The rows that can be used.
        problems: Maps line numbers to errors.
        columns: Interpretation of columns; None for files with fixed columns.
        machines: The machines that the rows name.
        notes: Other remarks for the user.
    """

    rows: tuple[MeasuredRow, ...]
    problems: Mapping[int, str]
    columns: Columns | None
    machines: tuple[str, ...]
    notes: tuple[str, ...] = ()


def read_table(
    source: str | Path,
    *,
    mapped: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    runtime: str | None = None,
    most: int | None = None,
) -> TableRead:
    """Reads the measured models of a file or of the store.

    Args:
        source: A CSV file (also ``.gz``), a kit's results, JSON lines of ``chipwise measurements export``, or
            ``measurements``.
        mapped: Maps columns with unclear names to fields.
        where: Maps columns to values; only rows with these values in these columns are read.
        runtime: Runtime of rows without one.
        most: Maximum number of rows of one machine. If a CSV table of several machines has more rows, only the names
            of the machines are read.

    Raises:
        SpecError: The file cannot be read, is empty or too long, lacks what is needed, or none of its rows can be used.
    """
    if str(source) == STORE:
        return _of_store(list(MeasurementStore().entries()), where, file=str(MeasurementStore().path))
    path = Path(source)
    text = read_text(path, most=MOST_TABLE_BYTES)
    if (count := text.count("\n")) > MOST_LINES:
        raise SpecError(
            f"has {count:,} lines; at most {MOST_LINES:,} are read: keep the lines of one machine", file=str(path)
        )
    if is_kit(text):
        if mapped or where:
            raise InputError(
                f"{path}: columns (--map) and where (--where) apply only to tables; a kit's results are from "
                "one machine"
            )
        return _of_kit(path)
    if text.lstrip().startswith("{"):
        lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
        stored = [
            Stored.from_data(parse_json(line, name=f"{path}, line {n}"), file=f"{path}, line {n}") for n, line in lines
        ]
        return _of_store(stored, where, file=str(path))
    return _of_csv(path, text, mapped, where, runtime, most)


def _of_csv(
    path: Path,
    text: str,
    mapped: Mapping[str, str] | None,
    where: Mapping[str, str] | None,
    runtime: str | None,
    most: int | None,
) -> TableRead:
    file = str(path)
    lines: list[tuple[int, dict[str, str]]] = []
    long: list[int] = []
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        names = [name for name in (reader.fieldnames or ()) if name]
        for row in reader:
            if None in row:
                long.append(reader.line_num)
            else:
                lines.append((reader.line_num, {key: (value or "").strip() for key, value in row.items() if key}))
    except csv.Error as error:
        raise SpecError(f"cannot be read as a CSV table: {error}", file=file) from None
    if not names or not (lines or long):
        raise SpecError("holds no rows; it needs a line of column names and a line for each measured model", file=file)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"has the column {short(twice)} twice", file=file)
    columns = find_columns(names, mapped, file=file)
    _check(columns, file, names)
    lines = _chosen(lines, where, names, file)
    machines = (
        sorted({row[columns.fields["machine"]] for _, row in lines} - {""}) if "machine" in columns.fields else []
    )
    if most is not None and len(machines) > 1:
        return TableRead(rows=(), problems={}, columns=columns, machines=tuple(machines))
    if most is not None and len(lines) > most:
        raise SpecError(
            f"{len(lines):,} rows are selected, but at most {most:,} can be used; select fewer with --where "
            "COLUMN=VALUE, or keep a sample of them",
            file=file,
        )
    rows: list[MeasuredRow] = []
    problems: dict[int, str] = dict.fromkeys(long, f"has more cells than the {len(names)} columns of the table")
    unknown: set[str] = set()
    models: Models = {}
    rate, length, without = columns.fields.get("prefill_rate", ""), columns.fields.get("prompt", ""), 0
    for number, cells in lines:
        if any(DOUBTFUL.match(value) for value in cells.values()):
            problems[number] = "marked doubtful in the table"
            continue
        try:
            found, strange = _row(number, cells, columns, path.parent, runtime, models)
        except ChipwiseError as error:
            problems[number] = " ".join(str(error).split())
            continue
        rows.append(found)
        without += bool(cells.get(rate)) and not cells.get(length)
        unknown |= {strange} - {""}
    if not rows:
        first = next(iter(problems.items()))
        raise SpecError(
            f"none of {counted(len(lines) + len(long), 'row')} can be used; line {first[0]}: {first[1]}", file=file
        )
    notes = [
        f"no runtime is called {name!r}: its rows are predicted as if in a known runtime, but fitted separately"
        for name in sorted(unknown)
    ]
    if columns.left_out:
        notes.append(f"columns that are not read: {', '.join(map(short, columns.left_out))}")
    if without:
        notes.append(
            f"{counted(without, 'rate')} of prompts left out, because no column says how long the prompts were"
        )
    return TableRead(rows=tuple(rows), problems=problems, columns=columns, machines=tuple(machines), notes=tuple(notes))


def _check(columns: Columns, file: str, names: Sequence[str]) -> None:
    known = columns.fields
    shapes = any(name in known for name in (*MODEL_COLUMNS, *PAIR_COLUMNS) if name not in ("kind", "vocab"))
    listed = ", ".join(names[:20])
    if "model" not in known and not shapes:
        raise SpecError(
            f"no column names the model of a row (columns: {listed}); map one: --map COLUMN=model, or give "
            "d_model and layers",
            file=file,
        )
    if not any(name in known for name in (*TIMES, *RATES)):
        raise SpecError(
            f"no column has a time or a rate (columns: {listed}); map one: --map COLUMN=total_s, ttft_ms, tpot_ms "
            "or decode_tokens_per_s",
            file=file,
        )


def _chosen(
    lines: list[tuple[int, dict[str, str]]], where: Mapping[str, str] | None, names: Sequence[str], file: str
) -> list[tuple[int, dict[str, str]]]:
    for column, value in (where or {}).items():
        if column not in names:
            raise UnknownName("column", column, names)
        values = {row[column] for _, row in lines}
        lines = [(number, row) for number, row in lines if row[column].lower() == value.lower()]
        if not lines:
            raise SpecError(f"no row has {column} = {value}", file=file, field=column) from (
                UnknownName(column, value, values) if values else None
            )
    return lines


def _row(
    number: int, cells: Mapping[str, str], columns: Columns, home: Path, runtime: str | None, models: Models
) -> tuple[MeasuredRow, str]:
    """Parses a line. Returns the row, and the name of its runtime if chipwise does not know that runtime, else "".

    ``models`` caches models of other lines.
    """
    found = {field: cells.get(column, "") for field, column in columns.fields.items()}
    if found.get("model", "").lower().endswith(ONNX):
        variant = "/".join(cells[name] for name in columns.variants if cells[name])
        return _timed(_of_file(number, found, home, runtime, variant), found, columns), ""
    key = tuple(found.get(name, "") for name in ("model", *MODEL_COLUMNS, *PAIR_COLUMNS, "cross_heads"))
    if key not in models:
        models[key] = _model(found, home)
    model, stored = models[key]
    named, variants = found.get("runtime") or runtime or "", [cells[name] for name in columns.variants if cells[name]]
    backend = next((cells[name].lower() for name in columns.variants if name.lower() == "backend"), "")
    known, strange = _runtime(named, backend)
    if strange:
        variants.append(strange)
    weights = format_name(name) if (name := found.get("weights", "").strip()) else stored
    context = whole(found, "context", default=None) if found.get("context") else None
    row = MeasuredRow(
        number=number,
        model=model,
        runtime=known,
        weights=weights,
        kv=found.get("kv") or None,
        batch=_whole(found, "batch", 1),
        prompt_tokens=_whole(found, "prompt", 512),
        new_tokens=_whole(found, "new", 128),
        context=context,
        variant="/".join(variants),
    )
    return _timed(row, found, columns), strange


def _of_file(number: int, cells: Mapping[str, str], home: Path, runtime: str | None, variant: str) -> MeasuredRow:
    """Returns the row of an ONNX file, which is in the current folder or in ``home``, the table's folder."""
    path = Path(cells["model"])
    return MeasuredRow(
        number=number,
        model=str(path if path.exists() else home / path),
        runtime=cells.get("runtime") or runtime,
        weights=cells.get("weights") or None,
        variant=variant,
        shape=cells.get("shape", ""),
        value=cells.get("value", ""),
    )


def _whole(cells: Mapping[str, str], field: str, default: int) -> int:
    value = whole(cells, field, default=default)
    if value < 1:
        raise SpecError(f"must be at least 1, not {value}", field=field)
    return value


def _timed(row: MeasuredRow, cells: Mapping[str, str], columns: Columns) -> MeasuredRow:
    """The row with its times in seconds; throughput over all requests in flight is converted to time per request."""
    times = {field: _seconds(cells[field], columns, field) for field in TIMES if cells.get(field)}
    rates = {field: _rate(cells[field], field) for field in RATES if cells.get(field)}
    if "prefill_rate" in rates and cells.get("prompt"):  # short prompts are processed at different rates from long ones
        times.setdefault("ttft", row.batch * row.prompt_tokens / rates["prefill_rate"])
    if "decode_rate" in rates:
        times.setdefault("tpot", row.batch / rates["decode_rate"])
    if "total_rate" in rates:
        times.setdefault("total", row.batch * row.new_tokens / rates["total_rate"])
    if not times:
        if "prefill_rate" in rates:
            raise SpecError("gives a rate of prompts but not their length; add a column prompt_tokens", field="prompt")
        raise SpecError("has neither a time nor a rate")
    for field, seconds in times.items():
        if not SHORTEST_S <= seconds <= LONGEST_S:
            raise SpecError(f"a time of {seconds:.3g} s cannot have been measured", field=field)
    return replace(row, total_s=times.get("total"), ttft_s=times.get("ttft"), tpot_s=times.get("tpot"))


def _seconds(text: str, columns: Columns, field: str) -> float:
    try:
        value = float(text) * columns.scale[field] if field in columns.scale else units.parse(text, "time")
    except (ValueError, UnitError):
        if field in columns.scale or not _is_number(text):
            raise SpecError(f"must be a time, not {text!r:.60}", field=field) from None
        column = columns.fields[field]
        raise SpecError(
            f"{text!r:.60} has no unit, and neither has the name of its column; say --map {column}={field}_s or "
            f"{column}={field}_ms",
            field=column,
        ) from None
    return _positive(value, field)


def _rate(text: str, field: str) -> float:
    try:
        return _positive(float(text) if _is_number(text) else units.parse(text, "rate"), field)
    except UnitError as error:
        raise SpecError(str(error), field=field) from None


def _positive(value: float, field: str) -> float:
    if not 0 < value < math.inf:
        raise SpecError(f"must be above 0, not {value:g}", field=field)
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _runtime(text: str, backend: str) -> tuple[str | None, str]:
    """Returns the runtime that a table names; if the name is unknown, a similar runtime (or None) and the name."""
    name = text.strip().lower()
    if not name:
        return None, ""
    stem = re.split(r"[\s(]", name)[0]
    for wanted in (name, stem, stem.replace("_", "-"), stem.removeprefix("ik_"), stem.rpartition("-")[2]):
        try:
            found = runtime_named(wanted).name
        except UnknownName:
            continue
        vulkan = found == "llama.cpp" and backend == "vulkan"
        return ("llama.cpp-vulkan" if vulkan else found), "" if wanted in (name, stem) else name
    nearest = next((known for known in RUNTIMES if name.startswith(known.partition("-")[0])), None)
    return nearest, name


def _model(cells: Mapping[str, str], home: Path) -> tuple[str | ArchSpec, str | None]:
    """The model of a row and the format of its checkpoint: from a name, a path, a spec, or the row's columns."""
    text = cells.get("model", "").strip()
    shapes = any(cells.get(name) for name in (*MODEL_COLUMNS, *PAIR_COLUMNS) if name not in ("kind", "vocab"))
    if text.startswith("{"):
        data = parse_json(text, name="model")
        if not isinstance(data, dict):
            raise SpecError("must be a spec or a config as a mapping", field="model")
        return (from_config(data) if "model_type" in data else spec_io.from_data(data)), None
    if shapes:
        arch = described(cells)
        return (replace(arch, name=text) if text else arch), None
    if not text:
        raise SpecError("is empty", field="model")
    path = Path(text)
    place = next((each for each in (path, home / path) if each.exists()), None)
    if place is not None:
        return resolve(place), default_weights(str(place))
    resolve(text)
    return text, None


def _of_store(items: Sequence[Stored], where: Mapping[str, str] | None, *, file: str) -> TableRead:
    """Stored measurements with a known design, in stored order. Runs with different thread counts stay separate."""
    for column, value in (where or {}).items():
        if column not in ("device", "machine", "runtime", "source"):
            raise UnknownName("column", column, ("device", "runtime", "source"))
        name = "device" if column == "machine" else column
        items = [item for item in items if _field(item, name).lower() == value.lower()]
    rows: list[MeasuredRow] = []
    problems: dict[int, str] = {}
    for number, item in enumerate(items, start=1):
        if item.design is None:
            problems[number] = f"{item.measurement.name}: its design is not known"
            continue
        rows.append(_stored_row(number, item.measurement, item.design))
    if not rows:
        raise SpecError(
            f"holds no measurement whose design is known{' of ' + str(dict(where)) if where else ''}", file=file
        )
    machines = sorted({item.measurement.device for item in items})
    return TableRead(rows=tuple(rows), problems=problems, columns=None, machines=tuple(machines))


def _of_kit(path: Path) -> TableRead:
    """Reads what a kit's script measured; the kit's ONNX files are next to the results or in the current folder."""
    results = read_results(path)
    measured = {model.file: (model, found) for model, found in results.measurements()}
    rows: list[MeasuredRow] = []
    problems: dict[int, str] = {}
    for number, item in enumerate(results.measured, start=1):
        if item.file not in measured:
            problems[number] = f"{item.file}: not measured: {item.error or 'the script was stopped'}"
            continue
        try:
            rows.append(_kit_row(number, *measured[item.file], path.parent))
        except ChipwiseError as error:
            problems[number] = f"{item.file}: {error}"
    if not rows:
        raise SpecError(f"none of {counted(len(problems), 'model')} can be used; {problems[1]}", file=str(path))
    return TableRead(rows=tuple(rows), problems=problems, columns=None, machines=(results.device_name,))


def _kit_row(number: int, model: KitModel, found: Measurement, home: Path) -> MeasuredRow:
    if model.inputs is None:
        design = model.known_design()
        if design is None:
            raise SpecError("its design is not known")
        return _stored_row(number, found, design)
    place = next((each for each in (home / model.file, Path(model.file)) if each.is_file()), None)
    if place is None:
        raise SpecError(f"is not in {home}, where the results are; keep them in the kit's folder")
    if sha256_of(place) != model.sha256:
        raise SpecError("differs from the file that was measured (the SHA-256 differs)")
    values = model.values or {}
    shapes = {name: shape for name, shape in model.inputs.items() if shape and name not in values}
    return MeasuredRow(
        number=number,
        model=str(place),
        runtime=model.runtime,
        variant=f"cpu/{found.threads} threads",
        shape=";".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()),
        value=";".join(f"{name}={value}" for name, value in values.items()),
        total_s=found.percentile("ttft", 0.5),
    )


def _field(item: Stored, name: str) -> str:
    return item.source if name == "source" else str(getattr(item.measurement, name))


def _stored_row(number: int, found: Measurement, design: Design) -> MeasuredRow:
    known, strange = _runtime(found.runtime, "")
    threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    weights = design.weights if design.weights in FORMATS else "fp32"
    return MeasuredRow(
        number=number,
        model=replace(design.arch, name=found.name),
        runtime=known,
        weights=weights,
        batch=found.workload.batch,
        prompt_tokens=found.workload.prompt_tokens,
        new_tokens=found.workload.new_tokens,
        variant="/".join(filter(None, (threads, strange))),
        ttft_s=found.percentile("ttft", 0.5),
        tpot_s=None if found.encodes else found.percentile("tpot", 0.5),
        ttft_tail=tail_ratio(found, "ttft"),
        tpot_tail=tail_ratio(found, "tpot"),
    )


def to_record(row: MeasuredRow) -> dict[str, object]:
    """A row in the form stored in a taught profile."""
    fields = {name: getattr(row, name) for name in MeasuredRow.__slots__ if getattr(row, name) is not None}
    model = spec_io.to_data(row.model) if isinstance(row.model, ArchSpec) else row.model
    return dict(plain({**fields, "model": model}))


def from_record(record: Mapping[str, Any]) -> MeasuredRow:
    """Reads a row from the output of :func:`to_record`.

    Raises:
        SpecError: The record is damaged.
    """
    model = record.get("model")
    try:
        arch = spec_io.from_data(dict(model)) if isinstance(model, Mapping) else str(model)
        return MeasuredRow(**{**record, "model": arch})
    except TypeError as error:
        raise SpecError(f"a row of the taught profile is damaged: {error}", field="records") from None


def map_of(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parses ``COLUMN=FIELD`` texts of the command line into a mapping.

    Raises:
        InputError: A text has no ``=``.
    """
    found: dict[str, str] = {}
    for text in texts:
        column, sign, field = text.partition("=")
        if not sign or not column.strip() or not field.strip():
            raise InputError(f"{option}: {text!r:.60} is not COLUMN=VALUE")
        found[column.strip()] = field.strip()
    return found

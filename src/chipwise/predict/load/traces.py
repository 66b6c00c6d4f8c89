"""Reads traces: logs with one request per line (JSON) or per row (CSV). Several common field names are understood."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from chipwise.core.fields import describe
from chipwise.core.files import parse_json, read_text
from chipwise.errors import SpecError, short
from chipwise.predict.load.load import MOST_REQUESTS, Load

ARRIVAL = ("arrival_s", "timestamp_s", "arrival_time", "timestamp", "Timestamp", "TIMESTAMP")
PROMPT = ("prompt_tokens", "input_tokens", "input_length", "input_toks", "ContextTokens", "Request tokens")
NEW = ("new_tokens", "output_tokens", "output_length", "output_toks", "GeneratedTokens", "Response tokens")
KIND, PREFIX, SHARED = "class", "prefix", "prefix_tokens"
MOST_BYTES = 2**28
MOST_SPAN_S = 1e9  # about 30 years; a longer trace is probably not in seconds


def read_trace(path: str | Path, *, longest: int | None = None, unit_s: float = 1.0) -> tuple[Load, tuple[str, ...]]:
    """Reads the requests of a trace, and the names of their classes.

    Each request has an arrival time (``arrival_s``, ``timestamp``, …), ``prompt_tokens`` and ``new_tokens`` (or other
    usual names for these). It may also have a ``class``, a ``prefix`` (an id of the prefix that it shares with other
    requests) and ``prefix_tokens``.

    Args:
        path: A file of JSON lines, or a CSV file.
        longest: Maximum number of positions of the model; None if unlimited.
        unit_s: Unit of the arrival times, in seconds.

    Raises:
        SpecError: The file cannot be read, or a request lacks a value, has a negative time or is too long; the message
            names the request.
    """
    name = str(path)
    arrivals, prompts, news, kinds, prefixes, shared = [], [], [], [], [], []
    for number, row in enumerate(_rows(read_text(path, most=MOST_BYTES), name), start=1):
        if number > MOST_REQUESTS:
            raise SpecError(f"holds more than {MOST_REQUESTS:,} requests; use a part of the trace", file=name)
        where = f"request {number}"
        arrival = _value(row, ARRIVAL, where, name) * unit_s
        prompt, new = (_count(row, names, where, name) for names in (PROMPT, NEW))
        if arrival < 0:
            raise SpecError(f"arrives at a negative time, {arrival:g} s", file=name, field=where)
        if prompt < 1:
            raise SpecError(f"has a prompt of {prompt} tokens; at least 1 is needed", file=name, field=where)
        if longest is not None and prompt + new > longest:
            raise SpecError(
                f"has {prompt:,} + {new:,} tokens, but the model's context is {longest:,}", file=name, field=where
            )
        arrivals.append(arrival)
        prompts.append(prompt)
        news.append(new)
        kinds.append(_text(row, KIND, where, name) or "requests")
        prefixes.append(_text(row, PREFIX, where, name))
        shared.append(_count(row, (SHARED,), where, name) if row.get(SHARED) not in (None, "") else 0)
        if shared[-1] > prompt:
            raise SpecError(
                f"{shared[-1]:,} exceeds the prompt's {prompt:,} tokens", file=name, field=f"{where}.{SHARED}"
            )
    if not arrivals:
        raise SpecError("holds no requests", file=name)
    lasts_s = max(arrivals) - min(arrivals)
    if lasts_s > MOST_SPAN_S:
        raise SpecError(
            f"the last request arrives {lasts_s:.3g} s after the first request: check that the times are in seconds",
            file=name,
        )
    names = tuple(dict.fromkeys(kinds))
    places = {kind: i for i, kind in enumerate(names)}
    texts = {text: i for i, text in enumerate(dict.fromkeys(filter(None, prefixes)))}
    order = np.argsort(np.array(arrivals), kind="stable")
    at = np.array(arrivals)[order]
    load = Load(
        arrival_s=at - at[0],
        prompt_tokens=np.array(prompts, np.int64)[order],
        new_tokens=np.array(news, np.int64)[order],
        kind=np.array([places[each] for each in kinds], np.int64)[order],
        prefix=np.array([texts.get(each, -1) for each in prefixes], np.int64)[order],
        prefix_tokens=np.array(shared, np.int64)[order],
    )
    return load, names


def _rows(text: str, name: str) -> Iterator[Mapping[str, object]]:
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = parse_json(line, name=name)
            except SpecError as error:
                raise SpecError(error.message, file=name, field=f"line {number}") from None
            if not isinstance(row, dict):
                raise SpecError("must be a mapping of fields", file=name, field=f"line {number}")
            yield row
        return
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""), strict=True), start=1):
            if None in row:
                raise SpecError("has more values than the table has columns", file=name, field=f"request {number}")
            yield row
    except csv.Error as error:
        raise SpecError(f"is neither JSON lines nor a CSV table: {error}", file=name) from None


def _value(row: Mapping[str, object], names: tuple[str, ...], where: str, file: str) -> float:
    found = next((each for each in names if row.get(each) not in (None, "")), None)
    if found is None:
        raise SpecError(f"lacks {names[0]} (other accepted names: {', '.join(names[1:4])})", file=file, field=where)
    try:
        value = np.nan if isinstance(row[found], bool) else float(str(row[found]))
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise SpecError(f"{found} must be a number, not {short(row[found])}", file=file, field=where)
    return value


def _text(row: Mapping[str, object], field: str, where: str, file: str) -> str:
    """The value of ``field``, a name or a numeric id, as text; empty if the field is missing."""
    value = row.get(field)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise SpecError(f"must be a name or a whole number, not {describe(value)}", file=file, field=f"{where}.{field}")
    return "" if value is None else str(value)


def _count(row: Mapping[str, object], names: tuple[str, ...], where: str, file: str) -> int:
    value = _value(row, names, where, file)
    if value < 0 or value != int(value) or value > 1e8:
        raise SpecError(f"{names[0]} must be a whole number of at least 0, not {value:g}", file=file, field=where)
    return int(value)

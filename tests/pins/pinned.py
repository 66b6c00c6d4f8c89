"""Shared functions of the pins: JSON files, digests, rounded numbers, differences."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
STORED = HERE / "stored"
DIGITS = 9  # significant ones of a number that is kept
TOLERANCE = 1e-6  # of a number, relative: processors differ in the last bits of exponentials, also in float32
SHOWN = 12  # differences


def read(name: str) -> Any:
    """The pins of ``name``."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Replaces the pins of ``name``: a line for each entry, so that a change shows which moved.

    With ``indent``, what is inside an entry has lines of its own, too.
    """
    separators = (",", ":" if indent is None else ": ")
    lines = [
        f"{json.dumps(key)}: {json.dumps(item, separators=separators, indent=indent)}" for key, item in value.items()
    ]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """``value`` as JSON with rounded numbers; other objects as their fields or their text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [plain(getattr(value, item.name)) for item in dataclasses.fields(value)]
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def digest(value: Any) -> str:
    """The first 16 hex digits of the sha256 of ``value``: of bytes as they are, else of its canonical JSON."""
    content = value if isinstance(value, bytes) else json.dumps(plain(value), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def texts(value: Any) -> Any:
    """``value`` with every number, also those in sentences, as ``#``."""
    if isinstance(value, dict):
        return {key: texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [texts(item) for item in value]
    if isinstance(value, float):
        return "#"
    return re.sub(r"[0-9][0-9.,]*", "#", value) if isinstance(value, str) and " " in value else value


def totals(value: Any) -> list[float]:
    """Number of floats in ``value``, their sum, and the weighted sum of their logarithms."""
    found = np.fromiter(_floats(value), float)
    sizes = np.log(np.abs(found[found != 0]))
    return plain([len(found), float(found.sum()), float(sizes @ np.linspace(1, 2, len(sizes)))])


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _floats(item)


def differences(then: Any, now: Any, place: str = "", *, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Differences of ``now`` from ``then``, one line each; numbers may differ by a relative ``tolerance``."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            if key not in now or key not in then:
                yield f"{place}/{key}: {'new' if key in now else 'gone'}"
            else:
                yield from differences(then[key], now[key], f"{place}/{key}", tolerance=tolerance)
    elif isinstance(then, list) and isinstance(now, list):
        if len(then) != len(now):
            yield f"{place}: {len(then)} entries, now {len(now)}: {_only(then, now)}"
            return
        for i, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from differences(old, new, f"{place}/{i}", tolerance=tolerance)
    elif isinstance(then, float | int) and isinstance(now, float | int) and not isinstance(then, bool):
        if not math.isclose(then, now, rel_tol=tolerance, abs_tol=1e-300):
            yield f"{place}: {then} -> {now}"
    elif then != now:
        yield f"{place}: {str(then)[:80]!r} -> {str(now)[:80]!r}"


def _only(then: Sequence[Any], now: Sequence[Any]) -> str:
    gone, new = ([str(item)[:60] for item in one if item not in other] for one, other in ((then, now), (now, then)))
    return f"gone {gone[:5]}, new {new[:5]}"


def check(then: Any, now: Any, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that nothing differs; the message shows the differences."""
    found = list(differences(then, json.loads(json.dumps(now)), tolerance=tolerance))
    assert not found, f"{len(found)} differ from what is pinned:\n" + "\n".join(found[:SHOWN])

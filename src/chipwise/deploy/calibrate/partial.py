"""Stores results of an unfinished calibration, so that it can be continued.

The file has JSON lines: first the identity of the calibration, then each measurement with its name. A file from another
machine, runtime or version, or older than a day, is ignored; so is an incomplete last line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from chipwise.core.digest import digest, plain
from chipwise.core.files import storage
from chipwise.errors import SpecError
from chipwise.hardware.detect import detect

T = TypeVar("T")
SCHEMA = "chipwise.calibrating/1"
OLDEST_S = 86_400.0  # a machine may change within a day
TIMING_PACKAGES = ("chipwise", "numpy", "onnx", "onnxruntime", "openvino", "xllamacpp", "llama-cpp-python", "torch")


class Partial:
    """Measurements of a calibration, stored until it is finished.

    Args:
        path: The file; None stores nothing.
        runtime: The runtime that is calibrated.
        threads: Threads of the runtime.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self, path: Path | None, *, runtime: str, threads: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        machine = {"machine": plain(detect()), "runtime": runtime, "threads": threads, "versions": _versions()}
        self._now_s, self._of = clock(), digest(machine)
        self._head: dict[str, object] = {"schema": SCHEMA, "of": self._of, "began_s": self._now_s}
        self._torn = False  # whether the last line is incomplete
        self._held = {} if path is None else self._read(path)

    def _read(self, path: Path) -> dict[str, object]:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}
        rows = [row for line in text.splitlines() if isinstance(row := _json(line), dict)]
        head, began_s = (rows[0], rows[0].get("began_s")) if rows else ({}, None)
        if (head.get("schema"), head.get("of")) != (SCHEMA, self._of) or not isinstance(began_s, int | float):
            return {}
        if not 0 <= self._now_s - began_s <= OLDEST_S:
            return {}
        self._head, self._torn = head, not text.endswith("\n")
        return {str(row["name"]): row["value"] for row in rows[1:] if {"name", "value"} <= row.keys()}

    def get(self, name: str) -> object:
        """The result stored under a name; None if there is none."""
        return self._held.get(name)

    def restored(self, name: str, read: Callable[[object], T]) -> T | None:
        """The result stored under a name, parsed by ``read``; None if it is missing or damaged."""
        held = self.get(name)
        try:
            return None if held is None else read(held)
        except SpecError:
            return None

    def put(self, name: str, value: object) -> None:
        """Stores a measurement.

        Raises:
            StorageError: The disk is full.
        """
        if self._path is None:
            return
        lines = [""] * self._torn if self._held else [json.dumps(self._head)]
        lines.append(json.dumps({"name": name, "value": value}))
        with storage(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a" if self._held else "w", encoding="utf-8") as stream:
                stream.write("".join(f"{line}\n" for line in lines))
        self._held[name], self._torn = value, False

    def remove(self) -> None:
        """Removes the file after the calibration is finished."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _json(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _versions() -> dict[str, str]:
    found = {}
    for name in TIMING_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

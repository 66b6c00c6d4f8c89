"""Date, machine and versions of a benchmark's rows: three columns of every CSV in this folder.

``stamp(path)`` adds them to a table that a script has just written, to the rows that lack them. ``unknown`` stands
where nobody wrote it down.
"""

from __future__ import annotations

import csv
import datetime
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from chipwise.hardware.detect import detect

COLUMNS = ("date", "machine", "versions")
PACKAGES = {  # by the module that a script has imported, if it uses the package
    "chipwise": "chipwise",
    "torch": "torch",
    "onnxruntime": "onnxruntime",
    "xllamacpp": "xllamacpp",
    "llama_cpp": "llama-cpp-python",
    "optuna": "optuna",
    "pymoo": "pymoo",
    "transformers": "transformers",
}


def here() -> dict[str, str]:
    """Today, this machine, and the versions of Python and of the packages in use."""
    versions = [f"Python {platform.python_version()}"]
    for module, package in PACKAGES.items():
        if module in sys.modules:
            try:
                versions.append(f"{package} {version(package)}")
            except PackageNotFoundError:  # run from a checkout that is not installed
                versions.append(f"{package} {getattr(sys.modules[module], '__version__', 'unknown')}")
    return dict(zip(COLUMNS, (datetime.date.today().isoformat(), detect().name, "; ".join(versions)), strict=True))


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes ``rows`` to a CSV file with the columns of the first one and where they come from."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    stamp(path)


def stamp(path: Path, origin: dict[str, str] | None = None) -> None:
    """Adds ``origin`` (``here()`` unless given) to the rows of a CSV file that do not say where they come from."""
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        rows, columns = list(reader), list(reader.fieldnames or ())
    origin = origin or here()
    for row in rows:
        if not row.get("date"):
            row.update(origin)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys([*columns, *COLUMNS])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

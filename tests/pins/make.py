"""Rewrites the pins: ``python tests/pins/make.py``, or some of them: ``python tests/pins/make.py answers surface``.

Stored samples stay. ``drawn`` draws the designs anew, which is needed only for another kind of model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import answers
import designs
import pinned
import samples
import surface
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


def drawn() -> dict[str, Any]:
    """The designs of each kind."""
    return {kind: designs.drawn(kind) for kind in designs.KINDS}


def spaces() -> dict[str, Any]:
    """The spaces of the example run files, as they are now."""
    files = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.yaml"))}
    return {name: data["space"] for name, data in files.items() if "space" in data}


def opened() -> dict[str, Any]:
    """Answers of the stored samples."""
    found = {}
    for name, opens in samples.SAMPLES.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CHIPWISE_HOME"] = folder
            found[name] = opens(Path(folder))
    return found


FILES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "spaces": spaces,
    "drawn": drawn,
    "answers": lambda: {name: answers.answer(name) for name in answers.QUESTIONS},
    "designs": lambda: {"versions": designs.versions()} | {kind: designs.found(kind) for kind in designs.PARTS},
    "surface": lambda: {name: part() for name, part in surface.PARTS.items()},
    "samples": opened,
}


def main() -> None:
    """Rewrites the named files; by default all except ``spaces`` and ``drawn``."""
    for name in sys.argv[1:] or [name for name in FILES if name not in ("spaces", "drawn")]:
        pinned.write(
            name, FILES[name](), indent=1 if name == "surface" else None
        )  # of names, which two changes may add
        print(f"wrote {name}.json")


if __name__ == "__main__":
    main()

"""Percent is written in one way, with a space: through ``units.show``, never by a format specification."""

from __future__ import annotations

import re
from pathlib import Path

import chipwise

SOURCES = Path(chipwise.__file__).parent


def test_no_format_specification_writes_percent() -> None:
    found = [
        f"{path.relative_to(SOURCES)}: {match}"
        for path in SOURCES.rglob("*.py")
        for match in re.findall(r"\{[^{}]*:[+,.0-9]*%\}", path.read_text(encoding="utf-8"))
    ]
    assert not found

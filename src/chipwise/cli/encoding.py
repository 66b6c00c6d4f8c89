"""Replaces characters that the terminal's encoding lacks, such as under ``PYTHONIOENCODING=ascii``."""

from __future__ import annotations

import codecs
import unicodedata

PLAINER = "chipwise.plainer"
SPELT = {
    "µ": "u", "μ": "u", "–": "-", "—": "-", "−": "-", "×": "x", "·": "*", "→": "->", "←": "<-", "▸": ">", "≤": "<=",
    "≥": ">=", "≈": "~", "±": "+-", "…": "...", "“": '"', "”": '"', "’": "'", "•": "*", "█": "#", "─": "-", "│": "|",
    "├": "+", "└": "+",
}  # fmt: skip


def plainer(error: UnicodeError) -> tuple[str, int]:
    """Returns ASCII replacements for characters that cannot be encoded; ``?`` if there is none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelt, error.object[error.start : error.end])), error.end


def _spelt(character: str) -> str:
    if character in SPELT:
        return SPELT[character]
    return unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"


codecs.register_error(PLAINER, plainer)

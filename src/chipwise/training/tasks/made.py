"""Files that a task makes once in the folder of a run, and finds there again."""

from __future__ import annotations

from pathlib import Path

from chipwise.core.files import read_mapping
from chipwise.errors import StudyError


def is_made(facts: Path, identity: str, *, entries: str) -> bool:
    """Whether the folder holds what a run asks for; ``facts`` is written last, with its ``identity``.

    Args:
        facts: The file that says what the others were made of.
        identity: A digest of all that they are made of.
        entries: What the folder holds, in the plural, for the message.

    Raises:
        StudyError: The folder holds other data.
    """
    if not facts.exists():
        return False
    if read_mapping(facts).get("identity") != identity:
        raise StudyError(f"{facts.parent}: holds other {entries}; start again with --restart")
    return True

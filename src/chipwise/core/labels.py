"""Checks that names from other machines' files are short and contain no terminal control characters."""

from __future__ import annotations

from chipwise.errors import SpecError, printable, short

MOST_CHARACTERS = 200


def require_label(value: str, field: str, *, empty: bool = False) -> None:
    """Checks a name that is stored and shown.

    Raises:
        SpecError: The name is empty (unless that is allowed), too long, or contains control characters.
    """
    if not value.strip() and not empty:
        raise SpecError("is empty", field=field)
    if len(value) > MOST_CHARACTERS:
        raise SpecError(f"has {len(value):,} characters; at most {MOST_CHARACTERS} name something", field=field)
    if printable(value) != value or "\n" in value:
        raise SpecError(f"{short(value)} contains characters that cannot be printed", field=field)

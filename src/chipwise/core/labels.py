"""Checks that names in files from other machines are short and contain no control characters."""

from __future__ import annotations

from chipwise.errors import SpecError, printable, short

MOST_CHARACTERS = 200


def require_label(value: str, field: str, *, empty: bool = False) -> None:
    """Checks a name that chipwise will store and display.

    Raises:
        SpecError: The name is empty (unless that is allowed), too long, or contains control characters.
    """
    if not value.strip() and not empty:
        raise SpecError("is empty", field=field)
    if len(value) > MOST_CHARACTERS:
        raise SpecError(f"has {len(value):,} characters; a name may have at most {MOST_CHARACTERS}", field=field)
    if printable(value) != value or "\n" in value:
        raise SpecError(f"{short(value)} contains characters that cannot be printed", field=field)

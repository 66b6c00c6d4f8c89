"""Checks kits and their results: a kit's checksum, dates, and plausible ranges of machine properties and readings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from chipwise.core.digest import digest
from chipwise.errors import SpecError, short


def sealed(kit: Mapping[str, object]) -> dict[str, object]:
    """Returns a kit's data with its checksum ``seal``: 32 hex digits of the SHA-256 of all other fields."""
    rest = {name: value for name, value in kit.items() if name != "seal"}
    return {**rest, "seal": digest(rest, length=32)}


def require_seal(kit: object, *, file: str, field: str | None = None) -> None:
    """Raises SpecError if a kit was changed after packing."""
    if not isinstance(kit, Mapping):
        return  # another message covers this
    try:
        seal = sealed(kit)["seal"]
    except (ValueError, RecursionError):  # a non-finite number or extreme nesting, which no kit has
        seal = None
    if kit.get("seal") != seal or seal is None:
        raise SpecError(
            "this kit was changed after chipwise packed it, so its results are not valid; pack it again with: "
            "chipwise kit",
            file=file,
            field=field,
        )


def require_date(text: str, field: str) -> None:
    """Raises SpecError if a field is not a date and time in ISO 8601."""
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise SpecError(
            f"must be a date and time such as 2026-01-31T12:00:00Z, not {short(text)}", field=field
        ) from None


SHORTEST_S, LONGEST_S = 1e-9, 1e6  # plausible range of one prompt or step
RANGES = {
    "cores": (1, 2**20),
    "memory_bytes": (1, 2**62),
    "peak_memory_bytes": (1, 2**62),
    "clock_hz": (1e3, 1e12),
    "clock_hz_before": (1e3, 1e12),
    "clock_hz_after": (1e3, 1e12),
    "temperature_c": (-100, 300),
    "ambient_c": (-100, 100),
    "at_s": (0, 1e8),
    "tpot_p50_s": (SHORTEST_S, LONGEST_S),
    "steps": (1, 1e12),
    "cpu_s": (0, 1e8),
    "wall_s": (1e-9, 1e8),
    "energy_j": (0, 1e12),
    "load_before": (0, 1e6),
    "load_after": (0, 1e6),
    "steps_per_sample": (1, 10**9),
}
"""Plausible ranges of machine properties and readings, by field. Unknown values are None."""


def check_ranges(block: object) -> None:
    """Raises SpecError if a field of ``block`` is outside its range."""
    for name, (least, most) in RANGES.items():
        value = getattr(block, name, None)
        if value is not None and not least <= value <= most:
            raise SpecError(f"must be from {least:g} to {most:g}, not {value:g}", field=name)

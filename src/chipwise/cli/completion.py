"""Names that a shell completes: devices, models, runtimes. Only file names and short tables are read."""

from __future__ import annotations


def devices(incomplete: str) -> list[str]:
    """Devices whose name starts as typed, and ``here`` and ``all`` where commands take them."""
    from chipwise.hardware import datasheet

    return [name for name in (*datasheet.names(), "all", "here") if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Models whose id, or whose part after the slash, starts as typed."""
    from chipwise.spec import families

    wanted = incomplete.lower()
    ids = families.names()
    matching = [name for name in ids if name.lower().startswith(wanted)]
    return matching or [tail for name in ids if (tail := name.rpartition("/")[2]).lower().startswith(wanted)]


def runtimes(incomplete: str) -> list[str]:
    """Runtimes whose name starts as typed."""
    from chipwise.hardware.runtime import RUNTIMES

    return [name for name in RUNTIMES if name.startswith(incomplete)]

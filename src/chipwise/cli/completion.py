"""Shell completion of device, model and runtime names; it reads only file names and short tables, to be quick."""

from __future__ import annotations

from chipwise.api import answers
from chipwise.core.typed import memory_bytes
from chipwise.errors import InputError

LIKE = "Family, such as llama, as which to read a config.json whose model_type is unknown."

MEMORY = "Memory size, for a device sold with several sizes: 64GB. Same as `--device 'm4 max 64GB'`."


def sized(device: str, memory: str | None) -> str:
    """Returns the device name with the memory size appended.

    Raises:
        InputError: ``memory`` is not a size, or ``device`` is a file, ``here`` or ``all``.
    """
    if memory is None:
        return device
    size = memory.replace(" ", "").lower()
    if memory_bytes(size) is None:
        raise InputError(f"--memory must be a size such as 64GB, not {memory!r}")
    if device in ("here", "all") or device.lower().endswith((".yaml", ".yml")):
        raise InputError(f"--memory is for devices sold with several sizes of memory, not for --device {device}")
    whole, colon, part = device.partition(":")
    return f"{whole} {size}{colon}{part}"


def devices(incomplete: str) -> list[str]:
    """Devices that start with the typed text, and ``here`` and ``all`` for commands that accept them."""
    known = (*answers.datasheet.names(), *answers.taught.names(), "all", "here")
    return [name for name in known if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Models whose id, or its part after the slash, starts with the typed text."""
    wanted = incomplete.lower()
    ids = answers.families.names()
    matching = [name for name in ids if name.lower().startswith(wanted)]
    tails = (name.rpartition("/")[2] for name in ids)
    matching = matching or [tail for tail in tails if tail.lower().startswith(wanted)]
    return [incomplete + name[len(incomplete) :] for name in matching]  # shells are case-sensitive


def runtimes(incomplete: str) -> list[str]:
    """Runtimes that start with the typed text."""
    return [name for name in answers.RUNTIMES if name.startswith(incomplete)]

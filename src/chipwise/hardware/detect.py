"""Detects this machine's processor, cores, caches and memory."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One computer. A cache level is None where the system does not tell it."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int
    l2_bytes: int | None = None  # of one core
    l3_bytes: int | None = None  # shared


def detect() -> Machine:
    """This machine."""
    cpu = _cpu_name()
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        name=f"{cpu}, {cores} cores", cpu=cpu, cores=cores, memory_bytes=memory, l2_bytes=_cache(2), l3_bytes=_cache(3)
    )


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine() or "unknown CPU"


def _cache(level: int) -> int | None:
    for folder in sorted(_CACHES.glob("index*")):
        try:
            if int((folder / "level").read_text()) == level:
                return int((folder / "size").read_text().strip().rstrip("K")) * 1024
        except (OSError, ValueError):
            continue
    return None

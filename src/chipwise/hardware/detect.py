"""Detects this machine's processor, cores, caches and memory."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.fields import later

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {  # names of instruction sets by their flags in /proc/cpuinfo, the best for integer products first
    "amx_int8": "AMX-INT8",
    "avx512_vnni": "AVX512-VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512bw": "AVX-512 without VNNI",
    "avx2": "AVX2 without VNNI",
    "sse4_1": "SSE4.1",
    "i8mm": "NEON with I8MM",
    "asimddp": "NEON with dot products",
    "asimd": "NEON",
}
SATURATING = frozenset({"AVX-512 without VNNI", "AVX2 without VNNI", "SSE4.1"})  # sums of int8 products have 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer's processor, cores, caches and memory. A cache's size is None if the system does not report it."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int
    l2_bytes: int | None = None  # per core
    l3_bytes: int | None = None  # shared by all cores
    instructions: str | None = later(None)


def detect() -> Machine:
    """Detects the properties of this machine."""
    cpu = _field("model name", _read_cpu_info()) or platform.processor() or platform.machine() or "unknown CPU"
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        name=f"{cpu}, {cores} cores",
        cpu=cpu,
        cores=cores,
        memory_bytes=memory,
        l2_bytes=_cache(2),
        l3_bytes=_cache(3),
        instructions=instructions(),
    )


def instructions(cpu_info: str | None = None) -> str | None:
    """The processor's best instruction set for integer matrix products; None if the system does not report it.

    ``cpu_info`` is the text of ``/proc/cpuinfo``; by default this machine's.
    """
    flags = _field(r"(?:flags|Features)", _read_cpu_info() if cpu_info is None else cpu_info)
    known = set() if flags is None else set(flags.split())
    return next((name for flag, name in INSTRUCTIONS.items() if flag in known), None)


def _read_cpu_info() -> str:
    try:
        return _CPU_INFO.read_text()
    except OSError:
        return ""


def _field(name: str, cpu_info: str) -> str | None:
    match = re.search(rf"^{name}\s*:\s*(.+)$", cpu_info, re.MULTILINE)
    return match[1].strip() if match else None


def _cache(level: int) -> int | None:
    for folder in sorted(_CACHES.glob("index*")):
        try:
            if int((folder / "level").read_text()) == level:
                return int((folder / "size").read_text().strip().rstrip("K")) * 1024
        except (OSError, ValueError):
            continue
    return None

"""Keeps oneDNN from using matrix instructions (AMX) that the processor lists but cannot run.

Some virtual machines list AMX in their CPU flags without enabling it; the first bf16 matrix product then ends the
process with SIGILL. A forked child tries one matrix product; if it dies, oneDNN is limited to AVX-512.
"""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import MutableMapping
from pathlib import Path

import torch

LIMIT = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it at its first matrix product; child processes inherit it
WITHOUT_AMX = "AVX512_CORE_FP16"


def bf16_product_survives() -> bool:
    """Whether a forked child process survives one bf16 matrix product."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # a crash is an expected answer, so print no traceback
        torch.set_num_threads(1)
        one = torch.ones(64, 64, dtype=torch.bfloat16)
        torch.mm(one, one)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def announces_amx() -> bool:
    """Whether the processor's flags list AMX tiles."""
    info = Path("/proc/cpuinfo")
    return info.exists() and "amx_tile" in info.read_text(encoding="utf-8", errors="replace")


@functools.cache
def bf16_is_safe() -> bool:
    """Whether this process can multiply in bf16 without a crash. Tests it once in a child process if AMX is listed."""
    return not announces_amx() or bf16_product_survives()


def avoid_broken_amx(
    environment: MutableMapping[str, str] = os.environ, *, announced: bool | None = None
) -> MutableMapping[str, str]:
    """Limits oneDNN if AMX is listed but does not work, by changing ``environment`` in place.

    Args:
        environment: The environment variables, to which the limit is added unless they already have one.
        announced: Whether the processor lists AMX; by default, this is read from its flags.
    """
    if announced is None:
        announced = announces_amx()
    if LIMIT not in environment and announced and not bf16_product_survives():
        environment[LIMIT] = WITHOUT_AMX
    return environment

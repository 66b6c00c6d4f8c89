"""The number format of matrix products: autocast's format, and the format that is fastest on this machine."""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from chipwise.core.files import read_json, write_json
from chipwise.model.nn.amx import bf16_is_safe

Precision = Literal["bf16", "fp32"]


def compute_format(x: Tensor) -> Tensor:
    """``x`` converted to autocast's format; without autocast, ``x`` itself.

    Blocks call this once, which saves a conversion for each matrix.
    """
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def torch_dtype(precision: Precision) -> torch.dtype:
    """The torch dtype for ``precision``."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@functools.cache
def fastest_precision() -> Precision:
    """The format with the fastest matrix products on one core of this machine, measured in a few milliseconds.

    If two formats are about equally fast, two processes may measure different winners. Use :func:`kept_precision` if
    all processes must use the same format.
    """

    def seconds(dtype: torch.dtype) -> float:
        a, b = torch.ones(512, 256, dtype=dtype), torch.ones(256, 256, dtype=dtype)
        best = math.inf
        for _ in range(8):
            start = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - start)
        return best

    if not bf16_is_safe():  # torch computed before oneDNN's limit was set, so bf16 may crash
        return "fp32"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return "bf16" if seconds(torch.bfloat16) * 1.3 < seconds(torch.float32) else "fp32"
    finally:
        torch.set_num_threads(threads)


def kept_precision(path: Path) -> Precision:
    """The precision of a run: measured once and stored in ``path``, so that all processes and resumed runs agree."""
    if path.exists():
        held = read_json(path)
        if held in get_args(Precision):
            return "bf16" if held == "bf16" else "fp32"
    found = fastest_precision()
    write_json(path, found)
    return found

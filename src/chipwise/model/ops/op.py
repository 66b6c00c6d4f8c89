"""Operators, which compute their work from their sizes. An operator is one kernel, or one node of a runtime's graph.

Sizes are whole numbers, or numpy arrays of one shape, so that one operator object can represent thousands of calls.
Formats are names from :mod:`chipwise.core.dtypes`. Each distinct byte that is read or written is counted once. A
multiply-add counts as two FLOPs; an exponential, division or square root counts as one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chipwise.core.dtypes import Size
from chipwise.model.ops.work import Work


class Op(Protocol):
    """One operator with its sizes."""

    @property
    def kind(self) -> str:
        """The operator's name in tables and reports."""
        ...

    def work(self) -> Work:
        """FLOPs and bytes of one call."""
        ...


def lesser(a: Size, b: Size) -> Size:
    """The element-wise smaller of two sizes; each may be a number or an array."""
    return min(a, b) if _plain(a) and _plain(b) else np.minimum(a, b)


def greater(a: Size, b: Size) -> Size:
    """The element-wise greater of two sizes; each may be a number or an array."""
    return max(a, b) if _plain(a) and _plain(b) else np.maximum(a, b)


def choose(condition: bool | np.bool_ | NDArray[np.bool_], a: Size, b: Size) -> Size:
    """``a`` where ``condition`` is true, else ``b``; all three may be arrays."""
    if isinstance(condition, bool | np.bool_):
        return a if condition else b
    return np.where(condition, a, b)


def triangle(n: Size) -> Size:
    """The sum 1 + 2 + … + n."""
    return n * (n + 1) // 2


def chunk_triangles(n: Size, chunk: Size) -> Size:
    """Number of pairs (i, j) with j <= i < n in the same chunk of ``chunk`` positions."""
    return n // chunk * triangle(chunk) + triangle(n % chunk)


def _plain(value: object) -> bool:
    return isinstance(value, int | float)

"""The work of one call of an operator: FLOPs and bytes. A multiply-add counts as two FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core.dtypes import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Numbers of FLOPs and bytes (never rates). They may be arrays, or expected values if routing is random."""

    flops: Size  # a multiply-add is two
    weight_bytes: Size = 0  # parameters read, in their stored format, scales included
    read_bytes: Size = 0  # activations and cache read, each distinct byte once
    write_bytes: Size = 0
    link_bytes: Size = 0  # bytes that each device sends to others

    @property
    def bytes(self) -> Size:
        """Number of bytes moved between a device and its own memory if nothing is cached."""
        return self.weight_bytes + self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> Size:
        """Arithmetic intensity: FLOPs per byte moved; 0 if no bytes are moved."""
        moved = self.bytes
        if isinstance(moved, np.ndarray):
            return np.divide(self.flops, moved, out=np.zeros(moved.shape), where=moved > 0)
        return self.flops / moved if moved else 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            flops=self.flops + other.flops,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            read_bytes=self.read_bytes + other.read_bytes,
            write_bytes=self.write_bytes + other.write_bytes,
            link_bytes=self.link_bytes + other.link_bytes,
        )

"""Work: what one call of an operator does. The definition of a FLOP lives here: a multiply-add is two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Counts, never rates."""

    flops: int  # a multiply-add is two
    weight_bytes: int = 0  # parameters read, in their stored format, scales included
    read_bytes: int = 0  # activations and cache read, each distinct byte once
    write_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All bytes moved when nothing is cached."""
        return self.weight_bytes + self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs per byte moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            flops=self.flops + other.flops,
            weight_bytes=self.weight_bytes + other.weight_bytes,
            read_bytes=self.read_bytes + other.read_bytes,
            write_bytes=self.write_bytes + other.write_bytes,
        )

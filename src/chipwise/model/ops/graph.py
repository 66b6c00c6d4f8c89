"""OpGraph: the operators of one pass through a model, in order, each with its place in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chipwise.model.ops.op import Op
from chipwise.model.ops.work import Work
from chipwise.model.ops.workload import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One operator and its place in the model, such as ``layers.3.ffn.up``."""

    place: str
    op: Op


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """The operators of one pass, in execution order."""

    phase: Phase
    ops: tuple[Placed, ...]

    def __iter__(self) -> Iterator[Placed]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def work(self) -> Work:
        """Total work of all operators. Weights that several layers share are counted each time that they are read."""
        total = Work(flops=0)
        for placed in self.ops:
            total = total + placed.op.work()
        return total

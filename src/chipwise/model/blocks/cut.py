"""Slices of a larger model's weights for a smaller model. No torch: only names and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from chipwise.core.arrays import AnyArray

if TYPE_CHECKING:
    from torch import Tensor

Part = TypeVar("Part", AnyArray, "Tensor")

Index = slice | list[int]  # consecutive rows, or a list of row numbers


class Cut(NamedTuple):
    """A weight of the larger model by name, with the slice of each axis."""

    source: str
    axes: tuple[Index, ...]

    def of(self, weights: Mapping[str, Part]) -> Part:
        """Returns the part of ``weights`` (arrays or tensors by name); a view if every axis is contiguous."""
        part = weights[self.source]
        for axis, index in enumerate(self.axes):
            part = part[(slice(None),) * axis + (index,)]
        return part


def first(count: int) -> Index:
    """Index of the first ``count`` rows."""
    return slice(0, count)


def rows(numbers: Sequence[int]) -> Index:
    """Index of these rows in this order: a slice if they are consecutive, because slicing makes no copy."""
    start = numbers[0]
    if list(numbers) == list(range(start, start + len(numbers))):
        return slice(start, start + len(numbers))
    return list(numbers)

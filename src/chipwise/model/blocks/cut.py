"""Describes which slices of a larger model's weights a smaller model gets. No torch: only names and indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from chipwise.core.arrays import AnyArray

if TYPE_CHECKING:
    from torch import Tensor

Part = TypeVar("Part", AnyArray, "Tensor")

Index = slice | list[int]  # consecutive rows, or a list of row numbers


class Cut(NamedTuple):
    """The name of a larger model's weight, and the slice to take along each of its axes."""

    source: str
    axes: tuple[Index, ...]

    def of(self, weights: Mapping[str, Part]) -> Part:
        """Cuts this part out of ``weights`` (arrays or tensors by name).

        The result is a view if all indices are slices.
        """
        part = weights[self.source]
        for axis, index in enumerate(self.axes):
            part = part[(slice(None),) * axis + (index,)]
        return part


def first(count: int) -> Index:
    """The index that selects the first ``count`` rows."""
    return slice(0, count)


def rows(numbers: Sequence[int]) -> Index:
    """The index that selects the rows ``numbers`` in order; a slice, which copies nothing, if they are consecutive."""
    start = numbers[0]
    if list(numbers) == list(range(start, start + len(numbers))):
        return slice(start, start + len(numbers))
    return list(numbers)

"""Expands size ranges in a space, such as ``256..1024``, to lists; widths become multiples of the target's tile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.explain.rules.change import columns_of_tile

MOST_WIDTHS = 8  # most values that a range of widths becomes
MOST_DEPTHS = 64
_RANGE = re.compile(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*")


def with_lists(space: Mapping[str, object], sheet: DeviceProfile | None) -> dict[str, object]:
    """``space`` with every range as a list: all depths in the range, or up to eight widths that fill whole tiles.

    Widths are spaced evenly on a logarithmic scale and rounded to multiples of the tile of the target's matrix products
    (on this machine 16 values, a vector of 512 bits).

    Raises:
        SpecError: A range is empty, or contains no multiple of the tile.
    """
    found = dict(space)
    for name in ("d_model", "depth"):
        if (held := _Range.read(space.get(name), name)) is not None:
            found[name] = held.depths() if name == "depth" else held.widths(sheet)
    layer = space.get("layer")
    held = _Range.read(layer.get("ffn_width"), "layer.ffn_width") if isinstance(layer, Mapping) else None
    if held is not None and isinstance(layer, Mapping):
        found["layer"] = {**layer, "ffn_width": held.widths(sheet)}
    return found


@dataclass(frozen=True, slots=True)
class _Range:
    low: int
    high: int
    field: str

    @classmethod
    def read(cls, value: object, field: str) -> _Range | None:
        match = _RANGE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None
        low, high = int(match[1]), int(match[2])
        if not 0 < low <= high:
            raise SpecError(f"a range must go from a smaller to a larger size above 0, not {value}", field=field)
        return cls(low, high, field)

    def depths(self) -> list[int]:
        if self.high - self.low >= MOST_DEPTHS:
            raise SpecError(
                f"a range may have at most {MOST_DEPTHS} depths, not {self.high - self.low + 1}", field=self.field
            )
        return list(range(self.low, self.high + 1))

    def widths(self, sheet: DeviceProfile | None) -> list[int]:
        tile = columns_of_tile(sheet, "bf16")
        first, last = -(-self.low // tile), self.high // tile
        if first > last:
            name = "this machine" if sheet is None else sheet.name
            raise SpecError(
                f"{self.low}..{self.high} contains no multiple of {tile}, the tile of matrix products on {name}; "
                "widen it",
                field=self.field,
            )
        return [int(count) * tile for count in np.unique(np.geomspace(first, last, MOST_WIDTHS).round())]

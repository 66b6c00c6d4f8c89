"""What makes a model fit that does not: the changes that are tried, the least first, for messages and advice alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

NARROWER = ("fp8", "int8", "int4")
MORE_DEVICES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A field of a request, and what it is changed to."""

    field: Literal["weights", "tp", "batch"]
    value: Any

    @property
    def option(self) -> str:
        """As it is typed."""
        return f"--{self.field} {self.value}"

    @property
    def words(self) -> str:
        """As it is said."""
        return {
            "weights": f"weights in {self.value}",
            "tp": f"{self.value} devices",
            "batch": f"{self.value} requests in flight",
        }[self.field]


def remedies_of(*, weights: str | None, tp: int, batch: int) -> Sequence[Sequence[Remedy]]:
    """Narrower weights, more devices, fewer requests in flight: a list for each sort, the least change first."""
    return (
        [Remedy(field="weights", value=name) for name in NARROWER if name != weights],
        [Remedy(field="tp", value=more) for more in MORE_DEVICES if more > tp],
        [Remedy(field="batch", value=batch >> i) for i in range(1, batch.bit_length())],
    )

"""Changes that may make a model fit in memory, smallest first, for error messages and for advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

NARROWER = ("fp8", "int8", "int4")
MORE_DEVICES = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A field of a request and its new value."""

    field: Literal["weights", "tp", "batch"]
    value: Any

    @property
    def option(self) -> str:
        """The change as a command-line option."""
        return f"--{self.field} {self.value}"

    @property
    def words(self) -> str:
        """The change in words."""
        return {
            "weights": f"weights in {self.value}",
            "tp": f"{self.value} devices",
            "batch": f"{self.value} requests in flight",
        }[self.field]


def remedies_of(*, weights: str | None, tp: int, batch: int) -> Sequence[Sequence[Remedy]]:
    """Lists of narrower weights, more devices and fewer requests in flight, each with the smallest change first."""
    return (
        [Remedy(field="weights", value=name) for name in NARROWER if name != weights],
        [Remedy(field="tp", value=more) for more in MORE_DEVICES if more > tp],
        [Remedy(field="batch", value=batch >> i) for i in range(1, batch.bit_length())],
    )

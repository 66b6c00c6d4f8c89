"""Changes that may make a model fit in memory, smallest first, for error messages and for advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chipwise.errors import counted
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime
from chipwise.hardware.suited import most_devices, narrower

MORE_DEVICES = (2, 4, 8)
Field = Literal["weights", "tp", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change that may make a request fit in memory: fields of the request with their new values."""

    changes: tuple[tuple[Field, str | int], ...]

    @classmethod
    def of(cls, field: Field, value: str | int) -> Remedy:
        """A remedy that changes one field."""
        return cls(changes=((field, value),))

    @property
    def field(self) -> Field:
        """The first of the changed fields."""
        return self.changes[0][0]

    @property
    def option(self) -> str:
        """The change as command-line options."""
        return " ".join(f"--{field} {value}" for field, value in self.changes)

    @property
    def words(self) -> str:
        """The change in words."""
        return " and ".join(
            {
                "weights": f"weights in {value}",
                "tp": counted(value, "device") if isinstance(value, int) else "",
                "batch": f"{value} requests in flight",
            }[field]
            for field, value in self.changes
        )


def remedies_of(
    *, runtime: Runtime, device: DeviceProfile, weights: str | None, tp: int, batch: int
) -> Sequence[Sequence[Remedy]]:
    """Three lists of remedies, each with the smallest change first.

    The lists are: weight formats with fewer bits that the runtime can read, more devices (if several such chips can be
    combined), and fewer requests in flight.
    """
    most = most_devices(device, runtime)
    return (
        [Remedy.of("weights", name) for name in narrower(runtime, weights)],
        [Remedy.of("tp", more) for more in MORE_DEVICES if tp < more <= most],
        [Remedy.of("batch", batch >> i) for i in range(1, batch.bit_length())],
    )


def together(sorts: Sequence[Sequence[Remedy]]) -> list[Remedy]:
    """Remedies for when no single change is enough: fewer bits per weight on the largest number of devices."""
    weights, devices, _ = sorts
    return [Remedy(changes=(*each.changes, *devices[-1].changes)) for each in weights] if devices else []

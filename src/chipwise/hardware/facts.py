"""Published figures of chips: a quantity as written in the file, with its source."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import ClassVar

from chipwise.core import units
from chipwise.errors import SpecError

LARGEST = 1e24  # largest plausible fact in SI units; beyond it a figure is a typing error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One published figure: the quantity as written in the file, with its source.

    ``number`` is the quantity in SI units (bytes, bytes/s, FLOP/s, Hz, watts, seconds, dollars, dollars per second).
    """

    kind: ClassVar[str] = "count"

    value: str | int | float
    source: str
    number: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise SpecError("must say where the figure is published", field="source")
        try:
            number = units.parse(self.value, self.kind)
        except OverflowError:
            number = math.inf
        if not 0 < number < LARGEST:
            raise SpecError(f"must be above zero and below {LARGEST:g}, not {self.value!r}", field="value")
        object.__setattr__(self, "number", number)


class Count(Fact):
    """A number of things, such as cores."""

    __slots__ = ()


class Rate(Fact):
    """Arithmetic operations per second; a multiply-add counts as two."""

    __slots__ = ()
    kind = "compute"


class Bandwidth(Fact):
    """Bytes per second."""

    __slots__ = ()
    kind = "bandwidth"


class Size(Fact):
    """Bytes."""

    __slots__ = ()
    kind = "bytes"


class Frequency(Fact):
    """Clock cycles per second."""

    __slots__ = ()
    kind = "frequency"


class Power(Fact):
    """Watts."""

    __slots__ = ()
    kind = "power"


class Time(Fact):
    """Seconds."""

    __slots__ = ()
    kind = "time"


class Temperature(Fact):
    """Degrees Celsius."""

    __slots__ = ()
    kind = "temperature"


class Price(Fact):
    """US dollars."""

    __slots__ = ()
    kind = "price"


class PriceRate(Fact):
    """US dollars per second (files say USD/h)."""

    __slots__ = ()
    kind = "price_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Size of a matrix instruction or systolic array: ``MxNxK``, or ``NxK`` for any m."""

    value: str
    source: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", self.value):
            raise SpecError(f"must be MxNxK or NxK, such as 16x8x16, not {self.value!r}", field="value")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The size (m, n, k); m is 1 for an array that streams rows."""
        parts = [int(part) for part in self.value.split("x")]
        m, n, k = parts if len(parts) == 3 else [1, *parts]
        return m, n, k

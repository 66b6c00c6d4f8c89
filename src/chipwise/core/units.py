"""Quantities with units: the only module that knows both ``3.35 TB/s`` and ``3.35e12``.

Inside the code everything is SI (seconds, bytes, watts, joules, FLOP/s, US dollars); files and screens speak in
human units. Decimal prefixes are decimal: 1 MB is 1e6 bytes, 1 MiB is 2**20.
"""

from __future__ import annotations

import math
import re
from typing import Final

from chipwise.core.errors import UnitError, nearest

_PREFIX: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL: Final = {"": 1.0, "m": 1e-3, "µ": 1e-6, "u": 1e-6, "n": 1e-9, "p": 1e-12}


def _table() -> dict[str, dict[str, float]]:
    time = {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}
    time |= {"seconds": 1.0, "d": 86400.0}
    size = {f"{p}B": f for p, f in (_PREFIX | _BINARY).items()}
    return {
        "time": time,
        "bytes": size,
        "bandwidth": {f"{unit}/s": factor for unit, factor in size.items()},
        "compute": {f"{p}{word}/s": f for p, f in _PREFIX.items() for word in ("FLOP", "OP")}
        | {f"{p}{word}": f for p, f in _PREFIX.items() for word in ("FLOPS", "OPS")},
        "power": {f"{p}W": f for p, f in (_PREFIX | _SMALL).items() if p != "n"},
        "energy": {f"{p}J": f for p, f in (_PREFIX | _SMALL).items()} | {"Wh": 3600.0, "kWh": 3.6e6},
        "frequency": {f"{p}Hz": f for p, f in _PREFIX.items()},
        "price": {"USD": 1.0, "$": 1.0},
        "price_rate": {"USD/h": 1 / 3600.0, "$/h": 1 / 3600.0, "USD/s": 1.0},
        "count": _PREFIX | {"B": 1e9, "tokens": 1.0},
        "rate": {f"{p}tokens/s": f for p, f in _PREFIX.items()} | {"tok/s": 1.0, "1/s": 1.0},
        "share": {"": 1.0, "%": 0.01},
    }


UNITS: Final = _table()
_NUMBER: Final = re.compile(r"^\s*((?>[+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?))\s*(\S.*?)?\s*$")


def parse(text: object, kind: str) -> float:
    """The SI value of ``text``, a quantity of ``kind`` (``time``, ``bytes``, ``bandwidth``, …).

    Raises:
        UnitError: No number, an unknown unit, a unit of another kind, or a missing unit where one is needed.

    >>> parse("3.35 TB/s", "bandwidth")
    3350000000000.0
    >>> parse("20 ms", "time")
    0.02
    """
    units = UNITS[kind]
    if isinstance(text, bool) or text is None:
        raise UnitError(f"{text!r} is not a quantity; write a number and a unit, such as {_example(kind)}")
    if isinstance(text, int | float):
        if "" not in units:
            raise UnitError(f"{text!r} has no unit; write a number and a unit, such as {_example(kind)}")
        value, unit = float(text), ""
    else:
        match = _NUMBER.match(str(text))
        if not match:
            raise UnitError(f"{text!r} is not a quantity; write a number and a unit, such as {_example(kind)}")
        value, unit = float(match[1].replace("_", "")), (match[2] or "")
    if unit not in units:
        if not unit:
            raise UnitError(f"{text!r} has no unit; write a number and a unit, such as {_example(kind)}")
        raise UnitError(f"unknown unit {unit!r} for {kind} in {text!r}; {nearest(unit, [u for u in units if u])}")
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is not finite")
    return value * units[unit]


def _example(kind: str) -> str:
    return {
        "time": "3 ms",
        "bytes": "100 MB",
        "bandwidth": "3.35 TB/s",
        "compute": "989 TFLOP/s",
        "power": "2 W",
        "energy": "5 mJ",
        "frequency": "1.98 GHz",
        "price": "0.01 USD",
        "price_rate": "2.5 USD/h",
        "count": "1.5M",
        "rate": "40 tokens/s",
        "share": "85 %",
    }[kind]


def show(value: float, kind: str, *, digits: int = 3) -> str:
    """``value`` (SI) in the unit a person would choose.

    >>> show(0.00123, "time")
    '1.23 ms'
    >>> show(104857600, "bytes")
    '105 MB'
    """
    if not math.isfinite(value):
        return "unknown"
    scale = _SCALES[kind]
    size = abs(value)
    for factor, unit in scale:
        if size >= factor * 0.9995:
            return f"{_round(value / factor, digits)}{unit}"
    factor, unit = scale[-1]
    return f"{_round(value / factor, digits)}{unit}"


_LARGE: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SCALES: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "time": ((3600.0, " h"), (60.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")),
    "bytes": tuple((f, f" {p}B") for f, p in _LARGE),
    "bandwidth": tuple((f, f" {p}B/s") for f, p in _LARGE),
    "compute": tuple((f, f" {p}FLOP/s") for f, p in _LARGE),
    "power": ((1e3, " kW"), (1.0, " W"), (1e-3, " mW")),
    "energy": ((1e3, " kJ"), (1.0, " J"), (1e-3, " mJ"), (1e-6, " µJ")),
    "frequency": tuple((f, f" {p}Hz") for f, p in _LARGE),
    "price": ((1.0, " USD"), (1e-3, "e-3 USD"), (1e-6, "e-6 USD")),
    "price_rate": ((1 / 3600.0, " USD/h"),),
    "count": ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")),
    "rate": ((1e6, " Mtokens/s"), (1e3, " ktokens/s"), (1.0, " tokens/s")),
    "share": ((0.01, " %"),),
}


def _round(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Quantities with units: the only module that converts between ``3.35 TB/s`` and ``3.35e12``.

Inside the code, all quantities are in base units (seconds, bytes, watts, joules, FLOP/s, US dollars); files and output
use customary units. Prefixes are decimal: 1 MB is 1e6 bytes, 1 MiB is 2**20. Numbers are shown with three significant
digits and without exponents.
"""

from __future__ import annotations

import math
import re
from typing import Final

from chipwise.errors import SpecError, UnitError, nearest, short

_PREFIX: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL: Final = {"": 1.0, "m": 1e-3, "µ": 1e-6, "u": 1e-6, "n": 1e-9, "p": 1e-12}


def _table() -> dict[str, dict[str, float]]:
    time = {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}
    time |= {"seconds": 1.0, "d": 86400.0}
    size = {f"{p}B": f for p, f in (_PREFIX | _BINARY).items()}
    per_million = {f"{currency}{tokens}": 1e-3 for currency in ("$", "USD") for tokens in (_MILLION, "/Mtok")}
    return {
        "time": time,
        "duration": time | {"m": 60.0},  # durations of jobs, in which m means minutes
        "bytes": size,
        "bandwidth": {f"{unit}/s": factor for unit, factor in size.items()},
        "compute": {f"{p}{word}/s": f for p, f in _PREFIX.items() for word in ("FLOP", "OP")}
        | {f"{p}{word}": f for p, f in _PREFIX.items() for word in ("FLOPS", "OPS")},
        "power": {f"{p}W": f for p, f in (_PREFIX | _SMALL).items()},
        "energy": {f"{p}J": f for p, f in (_PREFIX | _SMALL).items()} | {"Wh": 3600.0, "kWh": 3.6e6},
        "frequency": {f"{p}Hz": f for p, f in _PREFIX.items()},
        "price": {"USD": 1.0, "$": 1.0},
        "price_rate": {"USD/h": 1 / 3600.0, "$/h": 1 / 3600.0, "USD/s": 1.0},
        "token_price": {"USD": 1.0, "$": 1.0} | per_million,  # dollars for 1,000 tokens
        "count": _PREFIX | {"B": 1e9, "tokens": 1.0},
        "rate": {f"{p}tokens/s": f for p, f in _PREFIX.items()} | {"tok/s": 1.0, "1/s": 1.0},
        "share": {"": 1.0, "%": 0.01},
        "temperature": {"": 1.0, "C": 1.0, "°C": 1.0},
        "carbon": {"g/kWh": 1.0, "kg/kWh": 1000.0, "kg/MWh": 1.0},  # grams of CO2 per kilowatt-hour
    }


_MILLION: Final = " per million tokens"
UNITS: Final = _table()
_NUMBER: Final = re.compile(r"^\s*((?>[+-]?\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?))\s*(\S.*?)?\s*$")
_DOLLARS: Final = re.compile(r"^\s*(-?)\$\s*(\d{1,3}(?:,\d{3})+|\d[\d_]*)((?:\.\d+)?(?:[eE][+-]?\d+)?)(?!\d)(.*)$")
_PARTS: Final = re.compile(r"^\s*(-?)(\d+ (?:d|h|min))((?: \d+ (?:h|min|s))+)\s*$")
_LONGEST: Final = 60  # a message quotes at most this many characters of a bad input


def parse(text: object, kind: str) -> float:
    """Parses ``text``, a quantity of ``kind`` (``time``, ``bytes``, ``bandwidth``, …).

    Raises:
        UnitError: There is no number, the unit is unknown or of another kind, or a required unit is missing.

    >>> parse("3.35 TB/s", "bandwidth")
    3350000000000.0
    >>> parse("20 ms", "time")
    0.02
    >>> parse("16 min 42 s", "time")
    1002.0
    """
    units = UNITS[kind]
    if isinstance(text, bool) or text is None:
        raise UnitError(f"{_quoted(text)} is not a quantity; write a number and a unit, such as {_EXAMPLES[kind]}")
    if isinstance(text, int) and text.bit_length() > 1000:
        raise UnitError(f"{short(text)} is too large")
    if isinstance(text, int | float):
        if "" not in units:
            raise UnitError(_no_unit(text, f"{text:.15g}", kind))
        value, unit = float(text), ""
    else:
        written = _DOLLARS.sub(_dollars_last, str(text))
        if "s" in units and (parts := _PARTS.match(written)):
            pieces = [parts[2], *re.findall(r"\d+ [a-z]+", parts[3])]
            return (-1.0 if parts[1] else 1.0) * sum(parse(piece, "time") for piece in pieces)
        match = _NUMBER.match(written)
        if not match:
            raise UnitError(f"{_quoted(text)} is not a quantity; write a number and a unit, such as {_EXAMPLES[kind]}")
        value, unit = float(match[1].replace("_", "")), (match[2] or "")
        if not unit and "" not in units:
            raise UnitError(_no_unit(text, match[1], kind))
    if unit not in units:
        known = [each for each in units if each]
        raise UnitError(f"unknown unit {_quoted(unit)} for {kind} in {_quoted(text)}; {nearest(unit, known)}")
    if not math.isfinite(value):
        raise UnitError(f"{_quoted(text)} is not finite")
    return value * units[unit]


def parse_field(text: object, kind: str, field: str) -> float:
    """Like :func:`parse`, for the value of a named option, argument or field.

    Raises:
        SpecError: ``text`` is not a quantity of this kind; the error names the field.
    """
    try:
        return parse(text, kind)
    except UnitError as error:
        raise SpecError(str(error), field=field) from None


def _dollars_last(match: re.Match[str]) -> str:
    """Rewrites ``$1,200/h`` as ``1200 $/h``, which is read like any other unit."""
    return f"{match[1]}{match[2].replace(',', '')}{match[3]} ${match[4].rstrip()}"


def _no_unit(text: object, number: str, kind: str) -> str:
    unit = _EXAMPLES[kind].lstrip("0123456789.")
    shown = number if isinstance(text, int | float) else _quoted(text)
    return f"{shown[:_LONGEST]} has no unit; write a number and a unit, such as {number[:_LONGEST]}{unit}"


def _quoted(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}… ({len(shown):,} characters)"


_EXAMPLES: Final = {
    "time": "3 ms",
    "duration": "900 s",
    "bytes": "100 MB",
    "bandwidth": "3.35 TB/s",
    "compute": "989 TFLOP/s",
    "power": "2 W",
    "energy": "5 mJ",
    "frequency": "1.98 GHz",
    "price": "0.01 USD",
    "price_rate": "2.5 USD/h",
    "token_price": "0.83 USD per million tokens",
    "count": "1.5M",
    "rate": "40 tokens/s",
    "share": "85 %",
    "temperature": "45 C",
    "carbon": "350 g/kWh",
}


def show(value: float, kind: str, *, digits: int = 3) -> str:
    """Formats ``value`` (in base units) in a readable unit.

    >>> show(0.00123, "time")
    '1.23 ms'
    >>> show(1002, "time")
    '16 min 42 s'
    >>> show(104857600, "bytes")
    '105 MB'
    >>> show(0.000826, "token_price")
    '$0.83 per million tokens'
    >>> show(0.12345, "share")
    '12.3 %'
    >>> show(45.0, "temperature")
    '45 °C'
    """
    if not math.isfinite(value):
        return "unknown"
    if kind == "share":
        return f"{_percent(100 * value, digits)} %"
    if kind == "temperature":
        return f"{_round(value, digits)} °C"
    if kind in ("price", "price_rate", "token_price"):
        factor, unit = {"price": (1.0, ""), "price_rate": (3600.0, "/h"), "token_price": (1e3, _MILLION)}[kind]
        return _dollars(value * factor) + unit
    if kind in ("time", "duration") and abs(value) >= 59.95:
        return _minutes(value)
    factor, unit = _scale(value, "time" if kind == "duration" else kind)
    return f"{_round(value / factor, digits)}{unit}"


def span(value: float, low: float | None, high: float | None, kind: str) -> str:
    """Formats a value with its interval, in the same unit unless the interval's ends are far from the value.

    >>> span(0.00586, 0.0048, 0.0072, "time")
    '5.86 ms (4.8 to 7.2)'
    >>> span(0.0245, None, None, "time")
    '24.5 ms (no interval: not validated)'
    """
    known = low is not None and high is not None
    return f"{show(value, kind)} ({interval(value, low, high, kind) if known else 'no interval: not validated'})"


def interval(value: float, low: float | None, high: float | None, kind: str) -> str:
    """Formats the interval around ``value`` in the same unit, such as ``4.8 to 7.2``; a dash if an end is None."""
    if low is None or high is None:
        return "–"
    ends = (low, high)
    if not all(map(math.isfinite, (value, low, high))):
        return " to ".join(show(end, kind) for end in ends)
    if kind == "token_price":
        return " to ".join(_dollars(1e3 * end) for end in ends)
    if kind == "share":
        return " to ".join(_percent(100 * end, 3) for end in ends)
    if kind in ("price", "price_rate") or (kind in ("time", "duration") and max(map(abs, (value, *ends))) >= 59.95):
        return " to ".join(show(end, kind) for end in ends)
    factor, _ = _scale(value, kind)
    if all(end == 0 or 1e-3 < abs(end) / factor < 1e4 for end in ends):
        return " to ".join(_round(end / factor, 3) for end in ends)
    return " to ".join(show(end, kind) for end in ends)


def signed_percent(share: float) -> str:
    """Formats a relative difference with its sign.

    >>> signed_percent(-0.0837)
    '-8.4 %'
    """
    return f"{'-' if share < 0 else '+'}{_percent(100 * abs(share), 2)} %" if math.isfinite(share) else "unknown"


def number(value: float, *, digits: int = 3) -> str:
    """Formats a number with ``digits`` significant digits and thousands separators, without exponents below 1e15.

    >>> number(1994.3)
    '1,990'
    """
    if not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1e15:
        exponent = math.floor(math.log10(abs(value)))
        return f"{_round(value / 10.0**exponent, digits)} x 10^{exponent}"
    whole, point, rest = _round(value, digits).partition(".")
    sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    return f"{sign}{int(whole):,}{point}{rest}"


_LARGE: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SCALES: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "time": ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns"), (1e-12, " ps")),
    "bytes": tuple((f, f" {p}B") for f, p in _LARGE),
    "bandwidth": tuple((f, f" {p}B/s") for f, p in _LARGE),
    "compute": tuple((f, f" {p}FLOP/s") for f, p in _LARGE),
    "power": ((1e6, " MW"), (1e3, " kW"), (1.0, " W"), (1e-3, " mW"), (1e-6, " µW"), (1e-9, " nW")),
    "energy": ((1e6, " MJ"), (1e3, " kJ"), (1.0, " J"), (1e-3, " mJ"), (1e-6, " µJ"), (1e-9, " nJ")),
    "mass": ((1e6, " t"), (1e3, " kg"), (1.0, " g"), (1e-3, " mg"), (1e-6, " µg")),
    "frequency": tuple((f, f" {p}Hz") for f, p in _LARGE),
    "carbon": ((1e3, " kg/kWh"), (1.0, " g/kWh")),
    "count": ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"), (1.0, "")),
    "rate": ((1e6, " Mtokens/s"), (1e3, " ktokens/s"), (1.0, " tokens/s")),
    "image_rate": ((1e3, "k images/s"), (1.0, " images/s")),
    "request_rate": ((1e3, "k requests/s"), (1.0, " requests/s")),
    "sound_rate": ((1e3, "k sounds/s"), (1.0, " sounds/s")),
}


def _scale(value: float, kind: str) -> tuple[float, str]:
    """The largest unit in which the rounded ``value`` is at least 1; if there is none, the smallest unit."""
    scales = _SCALES[kind]
    if value == 0:
        return next(each for each in scales if each[0] == 1.0)
    return next((each for each in scales if abs(value) >= each[0] * 0.9995), scales[-1])


def _minutes(value: float) -> str:
    """Formats a time of at least a minute in two units: ``16 min 42 s``, ``2 h 5 min``, ``3 d 4 h``."""
    sign, seconds = ("-" if value < 0 else ""), abs(value)
    for large, small, longest in (("min", "s", 3600.0), ("h", "min", 48 * 3600.0), ("d", "h", math.inf)):
        factor, size = UNITS["time"][large], UNITS["time"][small]
        rest = round(seconds / size) * size
        if rest < longest:
            break
    count, rest = divmod(rest, factor)
    if count >= 1000:
        return f"{sign}{_round(count, 3)} {large}"
    return f"{sign}{count:.0f} {large}" + (f" {rest / size:.0f} {small}" if rest else "")


def _percent(percent: float, digits: int) -> str:
    """Formats a percentage with at most one decimal; below 1 % with one significant digit."""
    if abs(percent) < 0.95:
        return _round(percent, 1)
    if abs(percent) >= 99.95:
        return _round(percent, 3)
    text = f"{percent:.{0 if digits < 3 and abs(percent) >= 9.95 else 1}f}"
    return text.removesuffix(".0")


def _dollars(value: float) -> str:
    """Formats dollars: two significant digits below ten cents, then whole cents, and three digits above $100."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size >= 99.95 or size == 0:
        return f"{sign}${number(size)}"
    return f"{sign}${size:.2f}" if size >= 0.0995 else f"{sign}${_round(size, 2)}"


def _round(value: float, digits: int) -> str:
    """Formats ``value`` with ``digits`` significant digits, without an exponent or trailing zeros."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    text = f"{rounded:.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

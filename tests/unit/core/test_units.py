"""Quantities: what is read, what is shown, and that one undoes the other."""

from __future__ import annotations

import contextlib
import doctest
import math
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chipwise.core import units
from chipwise.core.units import UNITS, number, parse, show, signed_percent, span
from chipwise.errors import UnitError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("20 ms", "time", 0.02),
        ("20ms", "time", 0.02),
        ("1.5 h", "time", 5400.0),
        ("3 µs", "time", 3e-6),
        ("3 us", "time", 3e-6),
        ("10 min", "time", 600.0),
        ("100 MB", "bytes", 1e8),
        ("100 MiB", "bytes", 100 * 2**20),
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("989 TFLOP/s", "compute", 989e12),
        ("400 GOPS", "compute", 4e11),
        ("2 W", "power", 2.0),
        ("5 mJ", "energy", 0.005),
        ("1.98 GHz", "frequency", 1.98e9),
        ("2.5 USD/h", "price_rate", 2.5 / 3600),
        ("7B", "count", 7e9),
        ("1_000_000", "count", 1e6),
        ("40 tokens/s", "rate", 40.0),
        ("2.5 ktokens/s", "rate", 2500.0),
        ("40 1/s", "rate", 40.0),
        ("85 %", "share", 0.85),
        (0.85, "share", 0.85),
        ("1e-3 s", "time", 1e-3),
        ("10m", "duration", 600.0),
        ("16 min 42 s", "time", 1002.0),
        ("2 d 3 h", "duration", 183_600.0),
        ("$0.83 per million tokens", "token_price", 0.83e-3),
        ("0.83 USD/Mtok", "token_price", 0.83e-3),
        ("0.01 USD", "token_price", 0.01),
        ("$1,200.50", "price", 1200.5),
        ("$2.50/h", "price_rate", 2.5 / 3600),
    ],
)
def test_what_people_write(text: object, kind: str, value: float) -> None:
    assert parse(text, kind) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("20", "time", "has no unit; write a number and a unit, such as 20 ms"),
        (20, "time", "has no unit"),
        (900, "duration", "write a number and a unit, such as 900 s"),
        (15, "power", "write a number and a unit, such as 15 W"),
        ("3 m", "time", "did you mean 'ms' or 'min'"),
        ("$1,20", "price", "unknown unit"),
        ("x" * 100_000, "time", "(100,002 characters) is not a quantity"),
        ("20 msec", "time", "unknown unit 'msec' for time in '20 msec'; did you mean 'ms'"),
        ("20 MB", "time", "unknown unit 'MB' for time"),
        ("fast", "time", "is not a quantity"),
        ("", "time", "is not a quantity"),
        (None, "bytes", "is not a quantity; write a number and a unit, such as 100 MB"),
        (True, "bytes", "is not a quantity"),
        ("1e400 s", "time", "not finite"),
        ("nan s", "time", "is not a quantity"),
        ("1,5 ms", "time", "unknown unit"),
        (float("inf"), "share", "not finite"),
    ],
)
def test_what_cannot_be_read_is_explained(text: object, kind: str, words: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(text, kind)
    assert words in str(caught.value)


SHOWN = ["time", "bytes", "bandwidth", "compute", "power", "energy", "frequency", "rate", "count"]


@given(st.sampled_from(SHOWN), st.floats(1e-9, 1e15), st.sampled_from([3, 4]))
def test_what_is_shown_can_be_read_and_is_near(kind: str, value: float, digits: int) -> None:
    text = show(value, kind, digits=digits)
    assume(kind != "time" or value < 59)
    assert parse(text, kind) == pytest.approx(value, rel=6 * 10.0**-digits)


@given(st.floats(60, 1e8))
def test_long_times_are_right_to_half_their_smaller_unit(seconds: float) -> None:
    smaller = 1 if seconds < 3599.5 else 60 if seconds < 48 * 3600 - 30 else 3600
    tolerance = smaller / 2 if seconds < 999 * 86_400 else 0.006 * seconds  # a thousand days and more have three digits
    assert parse(show(seconds, "time"), "time") == pytest.approx(seconds, abs=tolerance + 1e-6)


@given(st.sampled_from(["price", "price_rate", "token_price"]), st.floats(1e-12, 1e9))
def test_prices_are_right_to_half_a_cent_or_two_digits(kind: str, value: float) -> None:
    assert parse(show(value, kind), kind) == pytest.approx(value, rel=0.051)


@given(st.floats(1e-9, 1e3))
def test_shares_are_right_to_the_digit_that_is_shown(share: float) -> None:
    tolerance = max(0.51e-3, 0.006 * share) if share >= 0.0094 else 0.51 * share
    assert parse(show(share, "share"), "share") == pytest.approx(share, abs=tolerance)


@given(st.sampled_from(sorted(UNITS)), st.floats(1e-6, 1e14), st.booleans())
def test_nothing_shown_has_an_exponent_or_more_than_three_significant_digits(
    kind: str, value: float, negative: bool
) -> None:
    text = show(-value if negative else value, kind)
    assert not re.search(r"\de[+-]?\d", text)
    for figure in re.findall(r"[\d.,]+", text.removesuffix(" per million tokens")):
        if kind not in ("time", "duration") or value < 59:
            digits = re.sub(r"[.,]", "", figure).lstrip("0")
            digits = digits if "." in figure else digits.rstrip("0")
            assert len(digits) <= (4 if kind in PRICES else 3)  # $12.50 has cents


PRICES = ("price", "price_rate", "token_price")


@given(st.floats(1e-6, 1e14), st.floats(1, 3), st.floats(1, 3), st.sampled_from([*SHOWN, *PRICES, "share"]))
def test_an_interval_is_shown_in_the_unit_of_its_value(value: float, below: float, above: float, kind: str) -> None:
    text = span(value, value / below, value * above, kind)
    shown, ends = re.fullmatch(r"(.+) \((.+) to .+\)", text).groups()  # type: ignore[union-attr]
    assert shown == show(value, kind)
    assert ends[0].isdigit() or ends[0] == "$"


@given(st.sampled_from(sorted(UNITS)), st.floats(0.001, 999.0), st.data())
def test_every_unit_scales(kind: str, count: float, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[kind])))
    text = f"{count!r} {unit}" if unit else repr(count)
    assert parse(text, kind) == count * UNITS[kind][unit]


@given(st.sampled_from(sorted(UNITS)), st.text(max_size=12))
def test_any_text_is_read_or_refused_and_never_crashes(kind: str, text: str) -> None:
    with contextlib.suppress(UnitError):
        assert math.isfinite(parse(text, kind))


def test_numbers_are_shown_as_people_write_them() -> None:
    assert show(0.00123, "time") == "1.23 ms"
    assert show(0.9999, "time") == "1 s"
    assert show(59.99, "time") == "1 min"
    assert show(12_300, "rate") == "12.3 ktokens/s"
    assert show(104_857_600, "bytes") == "105 MB"
    assert show(0, "bytes") == "0 B"
    assert show(math.nan, "energy") == show(math.inf, "time") == "unknown"
    assert show(-0.002, "time") == "-2 ms"
    assert [show(x, "time") for x in (59.9, 90, 1002, 3600, 7500, 200_000)] == [
        "59.9 s", "1 min 30 s", "16 min 42 s", "1 h", "2 h 5 min", "2 d 8 h",
    ]  # fmt: skip
    assert [show(x, "share") for x in (1, 0.123_45, 0.12, 0.000_618, -0.0837)] == [
        "100 %", "12.3 %", "12 %", "0.06 %", "-8.4 %",
    ]  # fmt: skip
    assert show(827e-6, "token_price") == "$0.83 per million tokens"
    assert [show(x, "price") for x in (0.0279, 0.672, 12.3, 1234)] == ["$0.028", "$0.67", "$12.30", "$1,230"]
    assert show(3.6 / 3600, "price_rate") == "$3.60/h"
    assert [number(x) for x in (1994.3, 0.123_45, 16, 3.2e17)] == ["1,990", "0.123", "16", "3.2 x 10^17"]
    assert [signed_percent(x) for x in (0.175, -0.0837)] == ["+18 %", "-8.4 %"]


def test_intervals_follow_their_values_in_the_same_unit() -> None:
    assert span(5.86e-3, 4.8e-3, 7.2e-3, "time") == "5.86 ms (4.8 to 7.2)"
    assert span(950e-6, 800e-6, 1.1e-3, "time") == "950 µs (800 to 1100)"
    assert span(826e-6, 672e-6, 1.01e-3, "token_price") == "$0.83 per million tokens ($0.67 to $1.01)"
    assert span(1002, 900, 1100, "time") == "16 min 42 s (15 min to 18 min 20 s)"


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(units).failed == 0
    page = (Path(__file__).parents[3] / "docs" / "reference" / "units.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[\w ]*) \| .* \| (`.*`) \|$", page, flags=re.MULTILINE)
    kinds = {"price over time": "price_rate", "price of tokens": "token_price", "CO2 of electricity": "carbon"}
    assert {kinds.get(kind, kind) for kind, _ in rows} == UNITS.keys()
    for kind, examples in rows:
        for text in re.findall(r"`([^`]+)`", examples):
            assert parse(text, kinds.get(kind, kind)) > 0

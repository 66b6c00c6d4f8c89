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
from chipwise.core.errors import UnitError
from chipwise.core.units import UNITS, parse, show


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
    ],
)
def test_what_people_write(text: object, kind: str, value: float) -> None:
    assert parse(text, kind) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("20", "time", "has no unit; write a number and a unit, such as 3 ms"),
        (20, "time", "has no unit"),
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


SHOWN = ["time", "bytes", "bandwidth", "compute", "power", "energy", "frequency", "rate", "price_rate"]


@given(st.sampled_from(SHOWN), st.floats(1e-9, 1e15))
def test_what_is_shown_can_be_read_and_is_near(kind: str, value: float) -> None:
    text = show(value, kind, digits=4)
    assume(text.split()[0] != "0")
    assert parse(text, kind) == pytest.approx(value, rel=6e-4)


@given(st.sampled_from(sorted(UNITS)), st.floats(0.001, 999.0), st.data())
def test_every_unit_scales(kind: str, number: float, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[kind])))
    text = f"{number!r} {unit}" if unit else repr(number)
    assert parse(text, kind) == number * UNITS[kind][unit]


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


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(units).failed == 0
    page = (Path(__file__).parents[3] / "docs" / "units.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[\w ]*) \| .* \| (`.*`) \|$", page, flags=re.MULTILINE)
    kinds = {"price over time": "price_rate"}
    assert {kinds.get(kind, kind) for kind, _ in rows} == UNITS.keys()
    for kind, examples in rows:
        for text in re.findall(r"`([^`]+)`", examples):
            assert parse(text, kinds.get(kind, kind)) > 0

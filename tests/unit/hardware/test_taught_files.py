"""Files of taught profiles: versions are added and never written over; names resolve as devices do."""

from __future__ import annotations

import json

import pytest

from chipwise.errors import InputError, SpecError, UnknownName
from chipwise.hardware import datasheet, taught
from chipwise.hardware.taught import Teaching


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))


def blank(name: str = "shop-box", version: int = 1, base: str = "raspberry-pi-4") -> Teaching:
    return Teaching(name=name, version=version, created="2026-01-01", base=base, rows=0)


def test_a_profile_is_a_device_by_name_and_by_version() -> None:
    blank().save()
    blank(version=2, base="raspberry-pi-5").save()
    newest, first = datasheet.load("Shop_Box"), datasheet.load("shop-box@1")
    assert (newest.name, newest.label) == ("raspberry-pi-5", "shop-box")
    assert (first.name, first.taught.version) == ("raspberry-pi-4", 1)
    assert taught.names() == ["shop-box"]
    assert taught.versions("shop box") == [1, 2]
    with pytest.raises(UnknownName, match="unknown version of shop-box '7'"):
        datasheet.load("shop-box@7")


def test_a_version_is_never_written_over() -> None:
    path = blank().save()
    before = path.read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        blank(base="l4").save()
    assert path.read_bytes() == before


def test_sheets_that_ship_are_not_shadowed_and_unknown_names_stay_unknown() -> None:
    blank(name="raspberry-pi-4").save()
    assert datasheet.load("raspberry-pi-4").taught is None
    blank().save()
    with pytest.raises(UnknownName, match="did you mean 'shop-box'"):
        datasheet.load("shop-boxx")


def test_a_new_version_is_seen_at_once() -> None:
    assert taught.revision("shop-box") == 0
    blank().save()
    first = taught.revision("shop-box")
    assert first > 0
    assert taught.revision("l4") == 0 == taught.revision("/etc/passwd")


@pytest.mark.parametrize("content", ["{}", "[]", "{", json.dumps({"schema": taught.SCHEMA, "name": "x"}), "\x00"])
def test_a_damaged_file_is_one_clear_error(content: str) -> None:
    path = blank().save()
    path.write_text(content)
    with pytest.raises(SpecError, match=r"v0001\.json"):
        datasheet.load("shop-box")


def test_a_posterior_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(SpecError, match="mean: must have 1 logarithms"):
        Teaching(name="x", version=1, created="", base="l4", rows=3, mean=(0.0, 0.0), covariance=((1.0,),), noise=0.1)


@pytest.mark.parametrize("name", ["", "../..", "  ", "???"])
def test_names_that_cannot_be_folders(name: str) -> None:
    with pytest.raises(InputError, match="cannot be a machine's name"):
        taught.key(name)

"""Strict reading and atomic writing: every refusal names the file, the field, and what to do."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.files import (
    build,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    read_mapping,
    read_yaml,
    resumable,
    storage,
    write_atomic,
    write_json,
    write_output,
    write_yaml,
)
from chipwise.errors import DiskFull, InputError, OutputError, SpecError, StorageError


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.width < 1:
            raise SpecError(f"must be at least 1, not {self.width}", field="width")
        if self.share > 1:
            raise InputError("more than all")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner
    many: tuple[Inner, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    color: Color = Color.RED
    on: bool = False
    limit: int | None = None
    either: int | str = 0
    table: Mapping[str, float] = field(default_factory=dict)
    anything: Any = None


GOOD = {"name": "x", "inner": {"width": 3}}


def test_plain_data_becomes_values() -> None:
    more = {"many": [{"width": 1, "share": 1}], "mode": "slow", "color": "blue", "on": True, "limit": None}
    value = build(Outer, GOOD | more | {"either": "text", "table": {"a": 1}})
    assert value.inner == Inner(width=3)
    assert value.many == (Inner(width=1, share=1.0),)
    assert isinstance(value.many[0].share, float)
    assert (value.mode, value.color, value.on, value.either, value.table) == (
        "slow",
        Color.BLUE,
        True,
        "text",
        {"a": 1.0},
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nmae": "y"}, "run.yaml: nmae: unknown field; did you mean 'name', "),
        ({"inner": {"widht": 3}}, "run.yaml: inner.widht: unknown field; did you mean 'width'?"),
        ({"inner": {}}, "run.yaml: inner.width: this field is missing"),
        ({"inner": None}, "run.yaml: inner: must be a mapping of fields, not nothing"),
        ({"inner": {"width": 0}}, "run.yaml: inner.width: must be at least 1, not 0"),
        ({"inner": {"width": 1, "share": 2}}, "run.yaml: inner: more than all"),
        ({"many": [{"width": 1}, {"width": "2"}]}, "run.yaml: many[1].width: must be a whole number, not text ('2')"),
        ({"many": {"width": 1}}, "run.yaml: many: must be a list, not a mapping"),
        ({"mode": "fats"}, "run.yaml: mode: 'fats' is not an accepted value; did you mean 'fast'?"),
        ({"color": "rde"}, "run.yaml: color: 'rde' is not an accepted value; did you mean 'red'?"),
        ({"on": 1}, "run.yaml: on: must be true or false, not a whole number (1)"),
        ({"limit": True}, "run.yaml: limit: must be a whole number, not true or false (True)"),
        ({"limit": 1.5}, "run.yaml: limit: must be a whole number, not a number (1.5)"),
        ({"table": [1]}, "run.yaml: table: must be a mapping, not a list"),
        ({"table": {"a": "b"}}, "run.yaml: table.a: must be a number, not text ('b')"),
        ({"either": []}, "run.yaml: either: must be a whole number, not a list ([])"),
        ({"name": None}, "run.yaml: name: must be text, not nothing"),
    ],
)
def test_wrong_data_is_refused_by_file_and_field(change: dict, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build(Outer, GOOD | change, file="run.yaml")
    assert str(caught.value).startswith(message)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(Outer.__annotations__)), inner)
        ),
        max_leaves=8,
    )
)
def test_any_data_is_built_or_refused(data: object) -> None:
    with contextlib.suppress(SpecError):
        assert isinstance(build(Outer, data, file="f"), Outer)


def yaml_error(tmp_path: Path, text: str | bytes) -> str:
    file = tmp_path / "a.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        read_yaml(file)
    assert str(caught.value).startswith(str(file))
    return str(caught.value)


def test_broken_yaml_says_where(tmp_path) -> None:
    assert "broken YAML at line 3, column 1" in yaml_error(tmp_path, "a: 1\nb: [1, 2\n")
    assert "the field 'a' is given twice" in yaml_error(tmp_path, "a: 1\nb: 2\na: 3\n")
    assert "line 3" in yaml_error(tmp_path, "x:\n  a: 1\n  a: 3\n")
    assert "must hold a mapping of fields, not nothing" in yaml_error(tmp_path, "")
    assert "not a list" in yaml_error(tmp_path, "- 1\n")
    assert "not a text file" in yaml_error(tmp_path, b"\xff\xfe\x00\x01")
    assert "a field name must be plain text" in yaml_error(tmp_path, "? [1, 2]\n: 3\n")
    assert "nested too deep" in yaml_error(tmp_path, "a: " + "[" * 100_000)


def test_nothing_in_yaml_is_executed(tmp_path) -> None:
    marker = tmp_path / "ran"
    yaml_error(tmp_path, f"a: !!python/object/apply:os.mkdir ['{marker}']\n")
    assert not marker.exists()


def test_files_that_are_not_there(tmp_path) -> None:
    with pytest.raises(SpecError, match="there is no such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="a folder, not a file"):
        read_yaml(tmp_path)
    with pytest.raises(SpecError, match="there is no such file"):
        read_json(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(SpecError, match="not valid JSON"):
        read_json(tmp_path / "broken.json")


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_only_regular_files_are_read(tmp_path, read) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(SpecError, match="pipe or device"):
            read(path)
    with pytest.raises(SpecError, match="cannot be the name"):
        read("a\0b")
    with pytest.raises(SpecError, match="cannot be read: File name too long"):
        read("a" * 5000)


def test_large_files_are_refused_before_they_are_parsed(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("a: " + "x" * 3_000_000)
    with pytest.raises(SpecError, match="larger than 2 MiB"):
        read_yaml(tmp_path / "a.yaml")
    with pytest.raises(SpecError, match="larger than 0 MiB"):
        read_bytes(tmp_path / "a.yaml", most=10)
    assert len(read_bytes(tmp_path / "a.yaml")) == 3_000_003


def test_a_file_without_permission(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SpecError, match=r"m\.yaml: cannot be read: Permission denied"):
        read_yaml("m.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E-5", 1e-5),
        ("1e6", 1_000_000),
        ("-2e+3", -2000),
        ("2.5e3", 2500.0),
        (".5e1", 5.0),
        ("1.e2", 100.0),
        ("1e", "1e"),
        ("e5", "e5"),
        ("'1e6'", "1e6"),
        ("1e6 s", "1e6 s"),
    ],
)
def test_exponents_are_numbers(text: str, value: object) -> None:
    for filler in ("", "# " + "x" * 30_000 + "\n"):  # both loaders
        found = parse_yaml(f"{filler}a: {text}\n", name="f")["a"]
        assert (found, type(found)) == (value, type(value))


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=8,
        ),
        min_size=1,
    )
)
def test_yaml_that_is_written_is_read_back(tmp_path_factory, value: dict) -> None:
    file = tmp_path_factory.mktemp("yaml") / "a.yaml"
    write_yaml(file, value)
    assert read_yaml(file) == value


def test_deep_and_exotic_json(tmp_path) -> None:
    for text, words in (("[" * 100_000 + "]" * 100_000, "nested too deep"), ("1" * 5000, "not valid JSON")):
        with pytest.raises(SpecError, match=words):
            parse_json(text, name="f")


@pytest.mark.parametrize("zeros", [308, 399, 5999])
def test_a_number_of_thousands_of_digits_is_called_that(tmp_path, zeros: int) -> None:
    """A float holds 308 zeros after a 1 and not one more; Python itself refuses to print more than 4,300 digits."""
    for name, read in (("a.yaml", read_yaml), ("a.json", read_json)):
        (tmp_path / name).write_text('{"a": 1' + "0" * (zeros - 1) + "}")
        if zeros <= 308:
            assert float(read(tmp_path / name)["a"]) == float(f"1e{zeros - 1}")
            continue
        with pytest.raises(SpecError, match=rf"{name}: .*: a number of {zeros:,} digits is too large$"):
            read(tmp_path / name)


def test_links_are_followed_and_devices_left_alone(tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept" / "target")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept" / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/full")):
        before = path.stat().st_mode
        with pytest.raises(StorageError, match="pipe or device"):
            write_atomic(path, "x")
        assert path.stat().st_mode == before
    with pytest.raises(StorageError, match="/proc/run"):
        write_atomic("/proc/run/a.json", "x")


@pytest.mark.parametrize("content", ["[]", "3", "null", '"x"'])
def test_what_is_no_mapping_is_refused_as_one(content: str, tmp_path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(SpecError, match=r"a\.json: must be a mapping of fields, not "):
        read_mapping(tmp_path / "a.json")


def test_json_comes_back_and_refuses_what_json_has_not(tmp_path) -> None:
    value = {"a": [1, 2.5, None, "ü"]}
    write_json(tmp_path / "new" / "a.json", value)
    assert read_json(tmp_path / "new" / "a.json") == value
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", math.nan)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EROFS, "cannot be written")],
)
def test_a_refused_write_keeps_the_old_file_and_leaves_no_part(tmp_path, monkeypatch, code: int, words: str) -> None:
    file = tmp_path / "record.json"
    write_atomic(file, "old")

    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=words):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_full_disk_offers_resume_only_where_there_is_such_an_option(tmp_path, monkeypatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFull, match=r"page\.html: the disk is full; free some space and try again$"):
        write_output(tmp_path / "page.html", "x")
    with pytest.raises(DiskFull, match=r"free some space and go on with --resume"), resumable():
        write_atomic(tmp_path / "run" / "record.json", "x")


def test_a_file_that_the_user_named_makes_no_folder(tmp_path) -> None:
    with pytest.raises(OutputError, match=r"there is no folder .*no/such; create it first"):
        write_output(tmp_path / "no" / "such" / "page.html", "x")
    assert not (tmp_path / "no").exists()


def test_a_file_where_a_folder_should_be(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_atomic(tmp_path / "file" / "a.json", "x")
    with pytest.raises(StorageError, match="this is a folder"):
        write_atomic(tmp_path, "x")
    with pytest.raises(StorageError, match="name too long"):
        write_atomic(tmp_path / ("a" * 300), "x")


def test_other_errors_pass_through_untouched() -> None:
    with pytest.raises(KeyError), storage("x"):
        raise KeyError("k")
    with pytest.raises(OSError, match="unheard of") as caught, storage("x"):
        raise OSError(errno.EIO, "unheard of")
    assert not isinstance(caught.value, StorageError)

"""A record reads fields by name and type; a mistake names the file and the path of the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.core.fields import convert
from chipwise.core.record import Record
from chipwise.errors import SpecError

KIT = Record.of({"name": "a", "share": 1, "empty": None, "hosts": [{"cores": 4}, {"cores": "8"}]}, file="kit.json")


def test_a_field_has_its_type_or_its_default() -> None:
    assert KIT.get("name", str) == "a"
    assert KIT.get("share", float) == 1.0
    assert KIT.get("absent", int, None) is None
    assert KIT.get("empty", int, 7) == 7
    assert KIT.sequence("absent", int) == []
    assert KIT.record("absent").data == {}
    assert "name" in KIT
    assert list(KIT) == ["name", "share", "empty", "hosts"]


def test_lists_and_records_inside_are_read() -> None:
    assert Record.of({"batches": [1, 8]}).sequence("batches", int) == [1, 8]
    assert KIT.records("hosts")[0].get("cores", int) == 4


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("absent", int, "kit.json: absent: this field is missing"),
        ("empty", int, r"kit.json: empty: must be a whole number, not nothing"),
        ("name", int, r"kit.json: name: must be a whole number, not text \('a'\)"),
    ],
)
def test_a_mistake_names_file_and_field(name: str, kind: type, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        KIT.get(name, kind)


def test_a_mistake_inside_a_list_names_its_place() -> None:
    with pytest.raises(SpecError, match=r"kit\.json: hosts\[1\]\.cores: must be a whole number, not text"):
        KIT.records("hosts")[1].get("cores", int)
    with pytest.raises(SpecError, match=r"kit\.json: hosts\[0\]: must be text, not a mapping"):
        KIT.sequence("hosts", str)
    with pytest.raises(SpecError, match=r"kit\.json: name: must be a mapping of fields"):
        KIT.record("name")
    with pytest.raises(SpecError, match=r"kit\.json: name: must be a list"):
        KIT.records("name")


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "a.yaml").write_text("a: 1")
    (tmp_path / "b.json").write_text("[1]")
    assert Record.read(tmp_path / "a.json").get("a", int) == Record.read(tmp_path / "a.yaml").get("a", int) == 1
    with pytest.raises(SpecError, match="must be a mapping of fields"):
        Record.read(tmp_path / "b.json")


def test_values_of_a_tuple_have_a_type_each() -> None:
    """Of ``tuple[float, int]`` the first widens and the second stays whole; a list of another length is refused."""
    rate, count = convert(tuple[float, int], [1, 2], "pair")
    assert (type(rate), type(count)) == (float, int)
    with pytest.raises(SpecError, match=r"pair\[1\]: must be a whole number"):
        convert(tuple[float, int], [1, 2.5], "pair")
    with pytest.raises(SpecError, match="must be a list of 2 items, not 3"):
        convert(tuple[float, int], [1, 2, 3], "pair")
    assert convert(tuple[float, ...], [1, 2, 3], "several") == (1.0, 2.0, 3.0)

"""Tables and profiles that were accepted in silence or took minutes: each is refused, or noted, in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chipwise.deploy.teach.machine import teach
from chipwise.deploy.teach.reading import MOST_LINES, read_table
from chipwise.errors import InputError, SpecError
from chipwise.hardware.taught import Teaching, versions

SIZES = "d_model,layers,heads,tpot_ms\n"


def table(folder: Path, text: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,tpot_ms\ngpt2,1e300\n", r"line 2: tpot: a time of 1e\+297 s cannot have been measured"),
        ("model,decode_tokens_per_s\ngpt2,1e-300\n", "line 2: tpot: a time of"),
        ("model,tpot_ms\ngpt2,1e-20\n", "line 2: tpot: a time of 1e-23 s"),
        ("model,tpot_ms,bathc\ngpt2,30,4\n", "a column 'bathc', which is not read; did you mean 'batch'"),
        ("model,tpot_ms\ngpt2,30,4\n", "line 2: has more cells than the 2 columns"),
        (SIZES + "64,2,3,1\n", "heads: a width of 64 is not divisible by 3 heads"),
        (SIZES + "64.5,2,4,1\n", "d_model: must be a whole number, not '64.5'"),
        (SIZES + "64,2.2,4,1\n", "layers: must be a whole number, not '2.2'"),
        ("model,tpot_ms\n" + "gpt2,30\n" * (MOST_LINES + 1), "200,002 lines; at most 200,000 are read"),
    ],
)
def test_a_table_without_sense(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        read_table(table(tmp_path, text))


def test_too_many_rows_of_one_machine_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = table(tmp_path, "model,tpot_ms\n" + "no-such-model,30\n" * 101)
    with pytest.raises(SpecError, match="101 rows are selected, but at most 100 can be used"):
        read_table(path, most=100)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    path = table(tmp_path, "model,tpot_ms,who,bathc\ngpt2,30,me,1\n")
    found = read_table(path, mapped={"bathc": "-"})
    assert found.notes == ("columns that are not read: 'who', 'bathc'",)


def test_nothing_to_add_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    path = table(tmp_path, "model,tpot_ms\ngpt2,3000\n")
    with pytest.raises(InputError, match="--add: new-box has no earlier version"):
        teach("new-box", path, base="raspberry-pi-4", add=True)
    assert versions("new-box") == []


@pytest.mark.parametrize(
    ("field", "value"), [("version", -1), ("label_sd", -0.1), ("amplitude", -1.0), ("rows", -3), ("noise", -0.1)]
)
def test_a_profile_that_was_changed_by_hand(field: str, value: float) -> None:
    sound = Teaching(name="box", version=1, created="2026-01-01", base="l4", rows=0)
    with pytest.raises(SpecError, match=f"{field}: must be at least"):
        replace(sound, **{field: value})  # type: ignore[arg-type]

"""Tables from outside: what is no table, has a column twice, or one that looks misspelt is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.core.csvfile import read_rows, whole, write_rows
from chipwise.core.files import check_output
from chipwise.errors import InputError, SpecError, StorageError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column 'model'"),
        ("model\n", "holds no rows"),
        ("modle,batch\na,1\n", "has no column 'model'; did you mean 'modle'?"),
        ("model,bathc\na,1\n", "unknown column 'bathc'; did you mean 'batch'?"),
        ("model,batch,batch\na,1,2\n", "has the column 'batch' twice"),
        ('model\n"unclosed\n', "cannot be read as a CSV table"),
        ("model\n\xff", "not a text file"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SpecError) as caught:
        read_rows(file, required=("model",), optional=("batch",))
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Commas, quotes and line breaks in cells; a column of the caller's own is kept."""
    rows = [{"model": "a,b", "note": 'say "x"'}, {"model": "c", "note": "two\nlines"}]
    write_rows(tmp_path / "t.csv", rows, ("model", "note"))
    assert read_rows(tmp_path / "t.csv", required=("model",), optional=("batch",)) == rows


def test_answers_do_not_replace_the_table_or_a_device(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("kept")
    with pytest.raises(InputError, match="this is the input file"):
        check_output(tmp_path / "." / "t.csv", source=table)
    with pytest.raises(StorageError, match="no folder"):
        write_rows(tmp_path / "no" / "t.csv", [], ("a",))
    with pytest.raises(StorageError, match="pipe or device"):
        check_output("/dev/full")
    with pytest.raises(StorageError, match="a folder"):
        check_output(tmp_path)
    check_output(tmp_path / "new.csv", source=table)
    assert table.read_text() == "kept"
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("text", ["x", "1.5", "nan", "inf", "1e400"])
def test_cells_that_are_no_whole_numbers(text: str) -> None:
    with pytest.raises(SpecError, match="n: must be a whole number"):
        whole({"n": text}, "n", default=1)


def test_empty_cells() -> None:
    assert whole({}, "n", default=3) == 3
    assert whole({"n": "4.0"}, "n", default=3) == 4
    with pytest.raises(SpecError, match="n: is empty"):
        whole({"n": ""}, "n", default=None)

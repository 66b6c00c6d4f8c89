"""Paths that a result cannot be written to are refused before any work, and nothing there is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.core.files import check_output
from chipwise.errors import InputError, SpecError, StorageError

runner = CliRunner()


def refused(*arguments: str, error: type[Exception] = StorageError) -> str:
    outcome = runner.invoke(app, list(arguments))
    assert isinstance(outcome.exception, error), outcome.output
    return str(outcome.exception)


def test_a_page_is_not_written_over_a_device_or_into_a_folder_that_is_missing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ask = ("explain", "gpt2", "--device", "l4", "--html")
    assert "a pipe or device" in refused(*ask, str(pipe))
    assert pipe.is_fifo()
    assert "a pipe or device" in refused(*ask, "/dev/null")
    assert Path("/dev/null").is_char_device()
    assert "this is a folder" in refused(*ask, ".")
    assert "there is no folder" in refused(*ask, str(tmp_path / "none" / "page.html"))
    assert not (tmp_path / "none").exists()
    assert "this is a folder" in refused("measurements", "export", str(tmp_path))


def test_a_table_is_not_written_over_itself(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("row_id,model,device\n1,gpt2,l4\n")
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    for out in (table, link):
        assert "this is the input file" in refused(
            "estimate", "--table", str(table), "--out", str(out), error=InputError
        )
    ops = tmp_path / "ops.csv"
    ops.write_text("op,device,m,n,k\ngemm,l4,1,2,3\n")
    assert "this is the input file" in refused("ops", "--table", str(ops), "--out", str(ops), error=InputError)
    assert table.read_text().startswith("row_id,model,device\n1,gpt2")


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    check_output(link)


@pytest.mark.parametrize(
    ("header", "message"),
    [("row_id,model,device,bathc", "did you mean 'batch'"), ("row_id,model,device,batch,batch", "twice")],
)
def test_a_misspelt_or_doubled_column_is_refused(tmp_path: Path, header: str, message: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text(f"{header}\n1,gpt2,l4,4,4\n")
    with pytest.raises(SpecError, match=message):
        api.estimate_table(table, tmp_path / "out.csv")


def test_columns_of_ones_own_are_copied_and_named(tmp_path: Path) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out.csv"
    table.write_text("row_id,model,device,team\n1,gpt2,l4,blue\n")
    outcome = runner.invoke(app, ["estimate", "--table", str(table), "--out", str(out)], catch_exceptions=False)
    assert "copied unchanged: team" in outcome.output
    assert "blue" in out.read_text()


def test_here_is_named_where_only_data_sheets_are_read() -> None:
    asked = ("space", str(Path(__file__).parents[3] / "examples" / "smoke.yaml"))
    assert "estimate, explain and compare accept it" in refused(*asked, "--device", "here", error=InputError)

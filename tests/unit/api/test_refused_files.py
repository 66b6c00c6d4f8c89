"""A file that cannot be opened gives one error line with its name in every command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import chipwise
from chipwise.cli import main
from chipwise.core.files import refused_files
from chipwise.errors import StorageError


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose contents may not be looked at, as of mode 000; also where the tests run as root."""
    folder = tmp_path / "locked"
    folder.mkdir()
    stat = Path.stat

    def denied(self: Path, **settings: bool) -> os.stat_result:
        if folder in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, **settings)

    monkeypatch.setattr(Path, "stat", denied)
    return folder


def test_a_model_in_a_folder_without_permission_is_named_by_the_api(locked: Path) -> None:
    for call in (
        lambda: chipwise.estimate(str(locked), device="l4"),
        lambda: chipwise.explain(str(locked), device="l4"),
        lambda: chipwise.compare([str(locked)], devices=["l4"]),
        lambda: chipwise.resolve(locked),
    ):
        with pytest.raises(StorageError, match=r"locked/config\.json: cannot be used: Permission denied"):
            call()


@pytest.mark.parametrize(
    "arguments",
    [
        *(("estimate", "{}"), ("explain", "{}", "--device", "l4"), ("compare", "gpt2", "{}", "--device", "l4")),
        *(("measure", "{}"), ("train", "{}", "--steps", "1")),
    ],
)
def test_a_model_in_a_folder_without_permission_is_named_by_the_command_line(
    arguments: tuple[str, ...], locked: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["chipwise", *(part.replace("{}", str(locked)) for part in arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    complaint = capsys.readouterr().err
    assert end.value.code == 2
    assert complaint.count("\n") == 1
    assert complaint.startswith(f"error: {locked}")
    assert "Permission denied" in complaint


def test_other_refusals_are_not_swallowed() -> None:
    for error in (TimeoutError(110, "Connection timed out", "host"), PermissionError("no file is named")):
        with pytest.raises(type(error)), refused_files():
            raise error

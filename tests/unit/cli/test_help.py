"""``chipwise --help`` lists every command once, below the heading of its group."""

from __future__ import annotations

import re
from typing import cast

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from chipwise.cli.app import GROUPS, app, run


def test_every_command_is_listed_once_in_its_group(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["chipwise", "--help"])
    with pytest.raises(SystemExit):
        run()
    shown = capsys.readouterr().out
    headings = re.findall(r"^(\w+):$", shown, flags=re.MULTILINE)
    assert headings == ["Options", *GROUPS]
    listed = re.findall(r"^  ([a-z-]+) ", shown.partition(f"\n{GROUPS[0]}:\n")[2], flags=re.MULTILINE)
    assert sorted(listed) == sorted(cast(TyperGroup, get_command(app)).commands)

"""A search that is stopped says so and how to go on, however early the signal comes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chipwise.cli import main
from chipwise.run import start_spec


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_run_file_is_read(number: int, code: int, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(start_spec, "load_any", lambda _: os.kill(os.getpid(), number))
    monkeypatch.setattr(sys, "argv", ["chipwise", "search", str(tmp_path / "run.yaml")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert capsys.readouterr().err == "stopped; finished work is kept, continue with --resume\n"


def test_resuming_an_empty_folder_says_that_a_new_run_starts(tmp_path: Path, monkeypatch, capsys) -> None:
    from chipwise import api

    monkeypatch.setattr(start_spec, "load_any", lambda _: None)
    monkeypatch.setattr(api, "search", lambda *_, **__: {})
    out = tmp_path / "none"
    monkeypatch.setattr(sys, "argv", ["chipwise", "search", "x.yaml", "--out", str(out), "--resume", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None)
    assert capsys.readouterr().err == f"{out}: there is no run to resume; starting a new one\n"

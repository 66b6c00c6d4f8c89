"""A stopped search says how to resume it, however early the signal comes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_record import example_record

from chipwise.api import runs
from chipwise.cli import main
from chipwise.errors import MissingExtra


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    hook = sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_run_file_is_read(number: int, code: int, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(runs, "load_any", lambda _: os.kill(os.getpid(), number))
    monkeypatch.setattr(sys, "argv", ["chipwise", "search", str(tmp_path / "run.yaml")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert capsys.readouterr().err == "stopped; finished work is kept, continue with --resume\n"


class Dying:
    """Sends a signal while it is finalised, where Python swallows what the handler raises."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        for _ in range(1000):  # the handler runs between instructions
            pass


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_was_swallowed_stops_the_search_at_its_next_progress(
    number: int, code: int, as_json: bool, tmp_path: Path, monkeypatch, capsys
) -> None:
    from chipwise import api
    from chipwise.design.run.progress import Status

    reached = []

    def search(*_: object, on_progress, **__: object) -> None:
        on_progress(Status())
        Dying(number)
        try:
            raise ValueError
        except ValueError:
            on_progress(Status())  # something is being undone: not here
            reached.append("undone")
        on_progress(Status())
        reached.append("went on")

    monkeypatch.setattr(sys, "unraisablehook", lambda _: reached.append("traceback"))
    monkeypatch.setattr(runs, "load_any", lambda _: None)
    monkeypatch.setattr(api, "search", search)
    arguments = ["chipwise", "search", "x.yaml", "--out", str(tmp_path / "out"), *(["--json"] if as_json else [])]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert reached == ["undone"]
    assert "stopped; finished work is kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["search", "x.yaml", "--out", "none"], "stopped; finished work is kept, continue with --resume\n"),
        (["search", "--model", "x.py"], "stopped; finished training runs are kept; run the same command again"),
        (["estimate", "x"], ""),
    ],
)
def test_ctrl_c_in_the_import_of_a_c_extension(command: list[str], said: str, monkeypatch, capsys) -> None:
    from chipwise import api

    def importing(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt as interrupt:
            raise ImportError("initialization of _module failed") from interrupt

    monkeypatch.setattr(runs, "load_any", lambda _: None)
    for place, name in ((api, "search"), (api, "search_module"), (api, "estimate")):
        monkeypatch.setattr(place, name, importing)
    monkeypatch.setattr(sys, "argv", ["chipwise", *command])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    printed = capsys.readouterr().err
    assert said in printed if said else not printed


@pytest.mark.parametrize("installed", [True, False])
def test_a_package_is_missing_only_if_its_import_was_not_stopped(installed: bool, monkeypatch, capsys) -> None:
    from chipwise import api

    def missing(*_: object, **__: object) -> None:
        cause = ImportError("initialization of _module failed")
        cause.__cause__ = KeyboardInterrupt() if installed else None
        raise MissingExtra("onnxruntime", "search") from cause

    monkeypatch.setattr(api, "estimate", missing)
    monkeypatch.setattr(sys, "argv", ["chipwise", "estimate", "x"])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr().err
    assert end.value.code == (130 if installed else 1)
    assert printed == "" if installed else "onnxruntime is not installed" in printed


def test_ctrl_c_while_the_commands_are_imported(monkeypatch, capsys) -> None:
    class Interrupted:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "chipwise.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "chipwise.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capsys.readouterr().err == ""


def test_resuming_an_empty_folder_says_that_a_new_run_starts(tmp_path: Path, monkeypatch, capsys) -> None:
    from chipwise import api

    monkeypatch.setattr(runs, "load_any", lambda _: None)
    monkeypatch.setattr(api, "search", lambda *_, **__: example_record())
    out = tmp_path / "none"
    monkeypatch.setattr(sys, "argv", ["chipwise", "search", "x.yaml", "--out", str(out), "--resume", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None)
    assert capsys.readouterr().err == f"{out} holds no run to resume; starting a new one\n"

"""One small search, run once for all tests that look at its results."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from chipwise.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


HERE = Path(__file__).parent
BRIEFLY = f"import sys; sys.path.insert(0, {str(HERE)!r}); from brief import main; main()"


def chipwise(*arguments: object, timeout_s: float = 600, **changes) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does; a search measures briefly."""
    begin = BRIEFLY if arguments[0] == "search" else "from chipwise.cli import main; main()"
    command = [sys.executable, "-c", begin, *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **changes)


def in_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line inside this process, without a second start: for commands that are refused or only read."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["chipwise", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


@contextmanager
def made_once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that all processes of one test run share, and whether it is still to be filled; one enters at a time."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder, not made.exists()
        made.touch()


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory) -> Path:
    """The folder of a finished run of examples/smoke.yaml, which tests read and do not change."""
    with made_once(tmp_path_factory, "smoke") as (folder, missing):
        if missing:
            done = chipwise("search", EXAMPLES / "smoke.yaml", "--out", folder, timeout_s=1200)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder

"""Runs the command line as a user does or in the test's process; folders shared by all test processes."""

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

import pytest

from chipwise.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALLER = {
    "tokens: 800k, final: 100k": "tokens: 300k, final: 50k",
    "package:chipwise/*/*.py": "package:chipwise/core/*.py",
}
HERE = Path(__file__).parent
BRIEFLY = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]; from brief import main; main()"


def _smaller(text: str) -> str:
    for old, new in SMALLER.items():
        assert old in text
        text = text.replace(old, new)
    return text


SMOKE = _smaller((EXAMPLES / "smoke.yaml").read_text())  # the example with a smaller budget and less text


def chipwise(*arguments: object, timeout_s: float = 600, **changes) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does; a search measures briefly."""
    begin = BRIEFLY if arguments[0] == "search" else "from chipwise.cli import main; main()"
    command = [sys.executable, "-c", begin, *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **changes)


def in_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs the command line inside this process, for tests that need no new interpreter."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["chipwise", *map(str, arguments)]
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", argv)
        if arguments[0] == "search":
            from brief import measure_briefly

            measure_briefly(patch.setattr)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


@contextmanager
def made_once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder shared by all processes of a test run, and whether it is still empty; one process enters at a time."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = base / name, base / f"{name}.made"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder, not made.exists()
        made.touch()

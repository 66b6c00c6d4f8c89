"""Standard output that is full, or whose encoding lacks characters: one line, or plainer ones, and no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chipwise.cli.encoding import PLAINER

MAIN = "from chipwise.cli import main; main()"
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")


def ran(arguments: list[str], out: int, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        stdout=out, stderr=subprocess.PIPE, env={**os.environ, **variables}, check=False,
    )  # fmt: skip


@needs_full
@pytest.mark.parametrize("arguments", [["runtimes"], ["devices", "--json"], ["--version"]])
def test_a_full_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = ran(arguments, full.fileno())
    assert done.returncode == 1
    assert done.stderr.decode().strip() == "error: output: the disk is full; free some space and try again"


def test_characters_that_the_output_lacks_are_spelt_plainly() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=PLAINER)
    stream.write("3 µs – 4 × é → 統")
    stream.flush()
    assert stream.buffer.getvalue() == b"3 us - 4 x e -> ?"  # type: ignore[attr-defined]


def test_the_command_line_prints_ascii_where_asked() -> None:
    done = ran(["runtimes"], subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    done.stdout.decode("ascii")

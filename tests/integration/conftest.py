"""One small search, run once for all tests that look at its results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def chipwise(*arguments: object, timeout_s: float = 600, **changes) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does."""
    command = [sys.executable, "-c", "from chipwise.cli import main; main()", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **changes)


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory) -> Path:
    """The folder of a finished run of examples/smoke.yaml."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    done = chipwise("search", EXAMPLES / "smoke.yaml", "--out", folder, timeout_s=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder

"""One small search, run once for all tests that look at its results."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import SMOKE, chipwise, made_once


@pytest.fixture(scope="session")
def smoke_file(tmp_path_factory) -> Path:
    """The small smoke search as a file."""
    path = tmp_path_factory.mktemp("smoke") / "smoke.yaml"
    path.write_text(SMOKE)
    return path


@pytest.fixture(scope="session")
def smoke_run(smoke_file, tmp_path_factory) -> Path:
    """The folder of its finished run, which tests read and do not change."""
    with made_once(tmp_path_factory, "smoke") as (folder, missing):
        if missing:
            done = chipwise("search", smoke_file, "--out", folder, timeout_s=1200)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder

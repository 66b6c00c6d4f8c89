"""One small search, run once for all tests that look at its results."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import EXAMPLES, chipwise, made_once


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory) -> Path:
    """The folder of a finished run of examples/smoke.yaml, which tests read and do not change."""
    with made_once(tmp_path_factory, "smoke") as (folder, missing):
        if missing:
            done = chipwise("search", EXAMPLES / "smoke.yaml", "--out", folder, timeout_s=1200)
            assert done.returncode == 0, done.stdout + done.stderr
        return folder

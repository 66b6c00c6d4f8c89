"""Shared set-up of all tests: a separate data folder, no deadline for Hypothesis, a browser for pages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from chipwise.deploy.measure import harness
from chipwise.model.nn.amx import avoid_broken_amx

# How long an example takes says how busy the machine is, not whether what is stated holds.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

os.environ.pop("COLUMNS", None)  # the width of whoever's terminal, which consoles keep from when they are made
avoid_broken_amx()  # before any test puts torch to work: oneDNN reads the limit once

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",
    "--virtual-time-budget=60000",
    "--dump-dom",
)


@pytest.fixture
def measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short measurements without repetition, even on a busy machine, for tests of code that uses them."""
    real = harness.measure
    monkeypatch.setattr(harness, "measure", lambda *what, **how: real(*what, **how | {"seconds": 0.1, "attempts": 1}))


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory):
    """Puts profiles and measurements into a temporary folder, and makes output look like a file's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHIPWISE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def no_earlier_trainings(own_data_folder) -> None:
    """Lets no search of a test begin with the trainings of another test's."""
    (Path(os.environ["CHIPWISE_HOME"]) / "trainings.jsonl").unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs files with slow tests first if several processes share the tests, so that none is left to the end."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = dict.fromkeys(item.path for item in items if item.get_closest_marker("slow"))
        waiting = dict.fromkeys(item.path for item in items if "smoke_run" in getattr(item, "fixturenames", ()))
        first, *others = [*waiting] or [None]  # one process makes the run, others do without
        order = [first, *(path for path in slow if path not in waiting), *others]
        items.sort(key=lambda item: order.index(item.path) if item.path in order else len(order))


Visit = Callable[[Path], tuple[str, list[str]]]


@pytest.fixture
def visit(tmp_path: Path) -> Visit:
    """Opens a page; returns the document after its scripts ran, and their console messages."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs {', '.join(BROWSERS[:-1])} or {BROWSERS[-1]} on the PATH")

    def visit(file: Path) -> tuple[str, list[str]]:
        done = subprocess.run(
            [found, *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", file.resolve().as_uri()],
            capture_output=True,
            text=True,
            timeout=180,
            check=True,
        )
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return visit

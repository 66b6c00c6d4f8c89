"""A pytest plugin that keeps account of skipped tests, so that each runs at least where everything is installed.

``SKIPPED_TO=FILE`` writes what was skipped, a line each; pytest runs such a file as ``@FILE``. ``EVERY_EXTRA=1`` says
that every extra is installed: a test that is skipped then, but for what no package brings, makes the run fail.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

# What wheels do not bring: a GPU, an hour, packages that are built from source or pin versions of their own, and what a
# runtime or a target does not do.
NOT_FROM_WHEELS = re.compile(
    r"GPU|CUDA|CHIPWISE_SLOW|llama.cpp|llama_cpp|vizier|aiconfigurator|package index|/proc|it measures|"
    r"use --batch 1|Python environment of its own",
    re.IGNORECASE,
)
skipped: dict[str, str] = {}  # of each test or file, the reason


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a skipped test."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes a file that is skipped as a whole."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[report.nodeid] = reason.removeprefix("Skipped: ")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the list of skipped tests, and fails the run if an installable requirement was missing."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if file := os.environ.get("SKIPPED_TO"):
        Path(file).write_text("".join(f"{name}\n" for name in skipped), encoding="utf-8")
    missing = {name: why for name, why in skipped.items() if not NOT_FROM_WHEELS.search(why)}
    if os.environ.get("EVERY_EXTRA") and missing:
        lines = [f"  {name}: {why}" for name, why in missing.items()]
        print("\nskipped although every extra is installed:", *lines, sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

"""The report of a real run in a real browser: every plot drawn, nothing on the console."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--enable-logging=stderr",
    "--virtual-time-budget=30000",
    "--dump-dom",
)
PLOTS = ("front", "promised", "roofline", "operators", "curves", "history")


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="needs chromium, chromium-browser, google-chrome or chrome on the PATH")
def test_a_real_report_draws_every_plot(smoke_run, tmp_path) -> None:
    address = (smoke_run / "report.html").resolve().as_uri()
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path}", address], capture_output=True, text=True, timeout=180
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    pieces = re.split(r'id="plot-(\w+)"', done.stdout)
    drawn = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    for plot in PLOTS:
        assert 'class="main-svg"' in drawn[plot], plot
        assert re.search(r'class="(?:trace|points)', drawn[plot]), plot

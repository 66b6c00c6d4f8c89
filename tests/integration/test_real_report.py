"""The report of a real run in a real browser: every plot drawn, nothing on the console."""

from __future__ import annotations

import re

import pytest

PLOTS = ("front", "promised", "curves")


@pytest.mark.browser
def test_a_real_report_draws_every_plot(smoke_run, visit) -> None:
    document, console = visit(smoke_run / "report.html")
    assert console == []
    pieces = re.split(r'id="plot-(\w+)"', document)
    drawn = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    for plot in PLOTS:
        assert 'class="main-svg"' in drawn[plot], plot
        assert re.search(r'class="(?:trace|points)', drawn[plot]), plot

"""What a report shows of each task, in a real browser: every image is decoded, every drawing has a size and content."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from chipwise.api.testing.task_suite import TaskSuite

pytestmark = pytest.mark.browser

SUITES = {
    "vision": "test_vision_suite.TestVision",
    "speech": "test_speech.TestSpeech",
    "series": "test_series_task.TestSeries",
    "diffusion": "test_diffusion.TestDiffusion",
    "multimodal": "test_multimodal_suite.TestMultimodal",
    "transcripts": "test_transcripts.TestTranscripts",
    "ranking": "test_ranking_task.TestRanking",
}
PROBE = """
const seen = {images: [], drawings: []};
seen.rows = document.querySelectorAll("tr").length;
seen.text = document.body.innerText.length;
for (const image of document.images) seen.images.push(image.complete && image.naturalWidth > 0);
for (const drawing of document.querySelectorAll("svg")) {
  const box = drawing.getBoundingClientRect();
  seen.drawings.push(box.width > 0 && box.height > 0 && drawing.querySelectorAll("*").length > 0);
}
document.title = "seen " + JSON.stringify(seen);
"""


@pytest.mark.parametrize("name", SUITES)
def test_every_picture_of_a_task_is_drawn(
    name: str, visit: Callable[[Path], tuple[str, list[str]]], tmp_path: Path
) -> None:
    module, _, kind = SUITES[name].partition(".")
    tests = importlib.import_module(module)
    suite: TaskSuite = getattr(tests, kind)()
    if hasattr(tests, "spoken"):
        suite.base = tests.spoken(tmp_path / "recordings")  # type: ignore[misc]
    data, item = suite.opened(tmp_path / "data"), suite.exported(tmp_path)
    pictures = suite.task.report_sections(json.loads(json.dumps(data.samples(item, item))))
    assert pictures, "a report shows something of every task"
    page = tmp_path / "page.html"
    body = "".join(f"<section><h2>{each.title}</h2>{each.html}</section>" for each in pictures)
    page.write_text(f"<!doctype html><title>empty</title><body>{body}<script>{PROBE}</script>", encoding="utf-8")
    document, console = visit(page)
    assert console == []
    found = re.search(r"<title>seen (.*?)</title>", document)
    assert found is not None
    seen = json.loads(found[1].replace("&quot;", '"'))
    assert seen["text"] > 40
    assert all(seen["images"])
    assert all(seen["drawings"])
    assert seen["images"] or seen["drawings"] or seen["rows"] > 2  # pictures, or lists

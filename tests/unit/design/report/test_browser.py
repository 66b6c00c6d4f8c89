"""The page in a real browser: every plot is drawn, hovering shows its text, sorting sorts, and nothing complains."""

import json
import re
from pathlib import Path

import pytest
from example_record import example_record, least

from chipwise.design.report.html import page
from chipwise.design.report.plots import draw

pytestmark = pytest.mark.browser
CHECK = """
<script>
"use strict";
function drawn(div) {
  const shown = div.data.filter((trace) => trace.visible !== false).length;
  return [shown, div.querySelectorAll(".scatterlayer .trace, .barlayer .trace").length];
}
async function hovered(div) {
  const texts = [];
  for (const [curveNumber, trace] of div.data.entries()) {
    if (trace.hoverinfo === "skip") continue;
    const pointNumber = Math.floor(trace.hovertext.length / 2); // the ends may lie outside the axes
    Plotly.Fx.hover(div, [{ curveNumber, pointNumber }]);
    await new Promise((done) => setTimeout(done, 100)); // plotly answers hovers every 50 ms
    const label = div.querySelector(".hoverlayer .hovertext");
    const wanted = trace.hovertext[pointNumber].split("<br>")[0].replace(/<[^>]*>/g, "");
    texts.push([trace.name || "", wanted, label ? label.textContent : ""]);
    Plotly.Fx.unhover(div);
    await new Promise((done) => setTimeout(done, 100));
  }
  return texts;
}
async function check() {
  const found = { plots: {}, hovers: {}, sorted: [], colours: [] };
  for (const div of document.querySelectorAll(".plot")) {
    found.plots[div.id] = [drawn(div)];
    found.hovers[div.id] = await hovered(div);
  }
  for (const button of document.querySelectorAll(".views button")) {
    button.click();
    await new Promise((done) => setTimeout(done, 50));
    const div = document.getElementById("plot-" + button.dataset.plot);
    found.plots[div.id].push(drawn(div));
    found.hovers[div.id].push(...(await hovered(div)));
  }
  const table = document.querySelector("#trials table");
  if (table) {
    const column = 5;
    table.tHead.rows[0].cells[column].click();
    found.sorted = Array.from(table.tBodies[0].rows, (row) => row.cells[column].dataset.value);
  }
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
}
(function wait() {
  if (document.documentElement.dataset.drawn) check(); else setTimeout(wait, 20);
})();
</script>
"""


def stored(html: str, folder: Path) -> Path:
    (folder / "report.html").write_text(html, encoding="utf-8")
    return folder / "report.html"


def checked(html: str, folder: Path, visit) -> dict:
    """What the page says of itself when every plot was hovered and every button pressed."""
    dom, console = visit(stored(html.replace("</body>", CHECK + "</body>"), folder))
    assert console == []
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, "the page's scripts did not come to their end"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_every_plot_is_drawn_and_can_be_hovered(tmp_path, visit):
    record = example_record()
    found = checked(page(record), tmp_path, visit)
    plots = draw(record)
    assert set(found["plots"]) == {f"plot-{plot.key}" for plot in plots}
    for plot in plots:
        states = found["plots"][f"plot-{plot.key}"]
        assert len(states) == 1 + (len(plot.views) if len(plot.views) > 1 else 0)
        for traces, layers in states:
            assert traces == layers > 0
        assert found["hovers"][f"plot-{plot.key}"]
        for name, wanted, shown in found["hovers"][f"plot-{plot.key}"]:
            assert wanted.replace("&amp;", "&") in shown, (plot.key, name)
    values = [float(value) for value in found["sorted"] if value]
    assert values == sorted(values)
    assert found["sorted"][len(values) :] == [""] * (len(record.trials) - len(values))


def test_a_page_without_plots_is_quiet(tmp_path, visit):
    assert checked(page(least()), tmp_path, visit)["plots"] == {}


def test_an_error_on_the_page_would_be_seen(tmp_path, visit):
    _, console = visit(stored("<!doctype html><script>throw new Error('deliberate')</script>", tmp_path))
    assert len(console) == 1
    assert "deliberate" in console[0]

import dataclasses
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from example_record import example_record, least

from chipwise.core.page.figures import axis
from chipwise.design.report.html import page
from chipwise.design.report.output import write
from chipwise.design.report.plots import draw
from chipwise.design.report.record import DataSummary, RunRecord, Target
from chipwise.errors import StorageError

NASTY = '</script><img src=x onerror="alert(1)">&amp; %{x} <b>'


class Text(HTMLParser):
    """What a reader sees: the text outside scripts and styles, and the tags that make it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.hidden = 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return example_record()


@pytest.fixture(scope="module")
def html(record) -> str:
    return page(record)


def nasty(record: RunRecord) -> RunRecord:
    """The same run, with names that try to break out of wherever they are put."""
    return dataclasses.replace(
        record,
        name=NASTY,
        version=NASTY,
        target=Target(device=NASTY, cpu=NASTY, runtime=NASTY, runtime_version=NASTY),
        data=DataSummary(name=NASTY, licence=NASTY, source=NASTY),
        notes=(NASTY,),
        trials=tuple(dataclasses.replace(trial, summary=NASTY, reason=NASTY, weights=NASTY) for trial in record.trials),
    )


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def test_the_page_needs_nothing_from_the_network(html):
    for tag, attributes in Text(html).tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert "default-src 'none'" in html
    assert html.count("* plotly.js v") == 1


def test_the_answer_is_in_the_page(record, html):
    text, winner = Text(html).text, record.trial(record.winner)
    assert f"The winner is trial {winner.number}" in text
    assert f"{winner.quantised_loss:.3f}" in text
    assert "onnxruntime 1.31.0, 1 thread" in text
    assert text.count("met") >= len(record.constraints)
    assert "Winner against reference design: bits per byte" in text


@pytest.mark.parametrize("make", [example_record, least])
def test_no_number_that_nobody_knows_is_shown_as_one(make):
    text = Text(page(make())).text
    assert not re.search(r"\b(nan|NaN|None|inf|null)\b", text)
    for plot in draw(make()):
        for view in plot.views:
            assert not [item for item in strings(view.figure) if re.search(r"\b(nan|None|inf)\b", item)]


def test_names_from_files_stay_text(record):
    html = page(nasty(record))
    parsed = Text(html)
    assert not [tag for tag, _ in parsed.tags if tag == "img"]
    assert "alert(1)" in parsed.text  # shown, as text
    assert [tag for tag, _ in parsed.tags].count("script") == 3
    for plot in draw(nasty(record)):
        for item in (text for view in plot.views for text in strings(view.figure)):
            assert "<img" not in item
            assert "<script" not in item
            assert "</script" not in item


def test_a_run_that_has_only_begun_says_why_there_is_nothing_to_see():
    text = Text(page(least())).text
    assert "This run has not finished" in text
    assert "No winner yet" in text
    assert "No candidate has been tried yet." in text
    assert "Nothing was measured yet, so no promise could be checked." in text
    assert all(plot.empty for plot in draw(least()))


def test_a_run_without_a_feasible_candidate_names_the_closest():
    record = dataclasses.replace(example_record(), winner=None, baseline=None, knee=None, front=(), status="partial")
    tight = tuple(
        dataclasses.replace(item, limit=item.limit / 1000, text="<= 58 kB") if item.metric == "peak_memory" else item
        for item in record.constraints
    )
    text = Text(page(dataclasses.replace(record, constraints=tight))).text.replace("\u00a0", " ")
    smallest = min((t.measured["peak_memory"], t.number) for t in record.trials if t.measured)
    assert f"Trial {smallest[1]} comes closest: its peak memory is" in text
    assert "where the limit is 58 kB" in text


def test_measured_and_predicted_are_told_apart_in_every_hover(record):
    front = next(plot for plot in draw(record) if plot.key == "front")
    texts = [text for view in front.views for trace in view.figure["data"] for text in trace.get("hovertext", [])]
    assert texts
    for text in texts:
        for line in text.split("<br>"):
            if line.startswith(("TPOT", "TTFT", "memory")):
                assert "predicted" in line or "measured" in line


def test_every_trial_that_failed_is_listed_with_its_reason(record, html):
    failed = [trial for trial in record.trials if trial.state == "failed"]
    assert failed
    for trial in failed:
        assert f"trial {trial.number} ({trial.summary}): {trial.reason}" in Text(html).text


def test_plotly_accepts_every_figure(record):
    objects = pytest.importorskip("plotly.graph_objects")
    for plot in draw(record):
        assert plot.views
        for view in plot.views:
            painted = paint(view.figure)
            assert objects.Figure(painted).data


def paint(value):
    if isinstance(value, str):
        return "#123456" if re.fullmatch("@[a-z]+", value) else value
    if isinstance(value, dict):
        return {key: paint(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [paint(item) for item in value]
    return value


def test_every_colour_is_one_of_the_theme(record, html):
    used = {item for plot in draw(record) for item in strings([v.figure for v in plot.views]) if item.startswith("@")}
    light, dark = html.split("@media (prefers-color-scheme: dark)", 1)
    for token in used:
        assert f"--{token[1:]}:" in light
        assert f"--{token[1:]}:" in dark


def test_three_files_are_written(tmp_path):
    paths = write(least(), tmp_path / "run")
    assert sorted(path.name for path in paths) == ["card.md", "report.html", "trials.csv"]
    assert all(path.read_text(encoding="utf-8") for path in paths)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        write(least(), tmp_path / "file" / "run")


def test_importing_the_report_loads_nothing_heavy():
    heavy = ("plotly", "torch", "optuna", "onnx")
    code = f"import sys, chipwise.design.report.html; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ticks_of_close_values_can_be_told_apart():
    """1.31214 to 1.31226 in steps of 0.00002: four digits would read 1.312 seven times."""
    found = axis([1.31214, 1.31226], "count", "bits per byte", log=False)["ticktext"]
    assert len(found) > 3
    assert len(set(found)) == len(found)
    assert axis([0.0, 8e7], "bytes", "", zero=True)["ticktext"][:2] == ["0", "20 MB"]


def test_a_count_is_not_also_predicted(html):
    (row,) = re.findall(r"<tr>(?:(?!</tr>).)*<td>parameters</td>.*?</tr>", html, flags=re.DOTALL)
    assert "counted" in row
    assert "predicted" not in row

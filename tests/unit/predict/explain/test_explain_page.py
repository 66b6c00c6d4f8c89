"""The page of an explanation: plotly accepts its figures, colours are the theme's, parts end where the bar ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from explain_cases import case

from chipwise.core.page.document import document
from chipwise.model.arch.arch import uniform
from chipwise.predict.explain.cases import calibrated_case
from chipwise.predict.explain.explanation import Explanation, explain_case
from chipwise.predict.explain.html import page
from chipwise.predict.explain.plots import roofline_figure
from support.machines import round_machine


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain_case(case("gpt2", batch=4))


def figures(found: Explanation) -> Iterator[dict[str, Any]]:
    assert found.case.sheet is not None
    yield roofline_figure(found.case.sheet, found.phases)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def painted(value: Any) -> Any:
    if isinstance(value, str):
        return "#123456" if re.fullmatch("@[a-z]+", value) else value
    if isinstance(value, dict):
        return {key: painted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [painted(item) for item in value]
    return value


def test_plotly_accepts_every_figure(found: Explanation) -> None:
    objects = pytest.importorskip("plotly.graph_objects")
    for figure in figures(found):
        assert objects.Figure(painted(figure)).data


def test_every_colour_is_one_of_the_theme(found: Explanation) -> None:
    style = document("x", "", figures={})
    for figure in figures(found):
        for token in strings(figure):
            if re.fullmatch("@[a-z]+", token):
                assert f"--{token[1:]}:" in style


def test_bars_follow_one_another_and_end_at_the_prediction(found: Explanation) -> None:
    text = page("gpt2", found)
    for phase in found.phases:
        drawn = text.split(f'id="waterfall-{phase.phase}"')[1].split("</ol>")[0]
        bars = [(float(at), float(wide)) for at, wide in re.findall(r"margin-left:([\d.]+)%;width:([\d.]+)%", drawn)]
        starts, ends = [at for at, _ in bars], [at + wide for at, wide in bars]
        assert len(bars) == len(phase.parts)
        assert starts[0] == 0
        assert starts[1:] == pytest.approx(ends[:-1], abs=0.25)  # a bar is at least 0.2 % wide, to be seen
        assert ends[-1] == pytest.approx(100, abs=0.25)


def test_no_point_lies_above_its_roof(found: Explanation) -> None:
    for phase in found.phases:
        for each in phase.operators:
            if each.reached is not None:
                assert 0 <= each.reached <= 1


def test_this_machine_has_no_roofline_of_a_data_sheet() -> None:
    arch = uniform(vocab_size=512, d_model=64, depth=2, heads=4, ffn_width=128, max_tokens=256, name="<tiny>")
    here = explain_case(calibrated_case(arch, round_machine(), prompt_tokens=32, new_tokens=8))
    text = page("<tiny>", here)
    assert 'id="plot-roofline"' not in text
    assert "&lt;tiny&gt;" in text
    assert "<tiny>" not in text


def test_what_does_not_fit_stands_above_all_figures_and_colours_the_memory() -> None:
    pytest.importorskip("plotly", reason="pages need the extra that draws them")
    text = page("llama", explain_case(case("meta-llama/Llama-3.1-8B", "rtx-4070", runtime="llama.cpp")))
    head = text[text.index('<div class="answer">') :].replace("\u00a0", " ")
    banner = head.index("Does not fit: needs 17.3 GB, has 12.9 GB; q8_0 fits (9.74 GB)")
    assert banner < head.index('<div class="tiles">')
    assert head.count("tile broken") == 1
    assert '<div class="tile broken"><div class="label">Memory</div>' in head


def test_no_two_tiles_have_one_name(found: Explanation) -> None:
    pytest.importorskip("plotly", reason="pages need the extra that draws them")
    text = page("gpt2", found)
    tiles = re.findall(r'<div class="label">([^<]*)</div>', text[: text.index('class="verdict"')])
    assert len(tiles) == len(set(tiles))
    assert {"Saturation in tokens of a pass", "Saturation in requests in flight", "Decode, each request"} <= set(tiles)
    assert "tile broken" not in text

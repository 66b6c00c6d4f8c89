"""Ranges of sizes: widths in whole tiles of the target, every depth."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chipwise.design.phases.overview import overview_of
from chipwise.design.run.ranges import MOST_WIDTHS, with_lists
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError
from chipwise.hardware import datasheet

SPACE = {
    "d_model": "64..256",
    "depth": "2..4",
    "vocab_size": [512],
    "layer": {"heads": [4], "kv_heads": [1, 2], "ffn": ["swiglu"], "ffn_width": "128 .. 512"},
}


@given(low=st.integers(1, 5000), more=st.integers(0, 20_000), name=st.sampled_from(["h100-sxm", "raspberry-pi-5", ""]))
def test_widths_are_whole_tiles_inside_the_range_and_reach_its_ends(low: int, more: int, name: str) -> None:
    sheet = datasheet.load(name) if name else None
    tile = {"h100-sxm": 256, "raspberry-pi-5": 64, "": 16}[name]
    inside = [each for each in range(low, low + more + 1) if each % tile == 0]
    if not inside:
        with pytest.raises(SpecError, match=f"no multiple of {tile}"):
            with_lists({"d_model": f"{low}..{low + more}"}, sheet)
        return
    found = with_lists({"d_model": f"{low}..{low + more}"}, sheet)["d_model"]
    assert isinstance(found, list)
    assert found == sorted(set(found))
    assert set(found) <= set(inside)
    assert (found[0], found[-1]) == (inside[0], inside[-1])
    assert len(found) <= MOST_WIDTHS


def test_a_run_file_with_ranges_is_the_one_with_their_lists() -> None:
    whole = {"name": "small", "workload": {"prompt_tokens": 8, "new_tokens": 8}, "data": {"source": "files"}}
    lists = {"d_model": [64, 80, 96, 112, 144, 176, 208, 256], "depth": [2, 3, 4]}
    layer = {**SPACE["layer"], "ffn_width": [128, 160, 192, 224, 288, 352, 416, 512]}
    by_range, by_list = (
        run_spec({**whole, "space": space}, file="run.yaml") for space in (SPACE, {**SPACE, **lists, "layer": layer})
    )
    assert by_range.space == by_list.space
    assert by_range.identity == by_list.identity
    assert run_spec({**whole, "space": SPACE, "target": "h100-sxm"}, file="run.yaml").space.d_model == (256,)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"d_model": "512..64"}, "space.d_model: a range must go from a smaller to a larger size above 0, not 512..64"),
        ({"depth": "0..4"}, "space.depth: a range must go from a smaller to a larger size above 0, not 0..4"),
        ({"depth": "1..100"}, "space.depth: a range may have at most 64 depths, not 100"),
        ({"d_model": "100..110"}, "space.d_model: 100..110 contains no multiple of 16, the tile of matrix products on"),
        ({"d_model": "64...256"}, "space.d_model"),
    ],
)
def test_a_wrong_range_is_one_line(space: dict[str, str], said: str, tmp_path: Path) -> None:
    whole = {"name": "small", "workload": {}, "data": {"source": "files"}, "space": {**SPACE, **space}}
    with pytest.raises(SpecError) as error:
        run_spec(whole, file="run.yaml")
    assert f"run.yaml: {said}" in str(error.value)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(whole))
    with pytest.raises(SpecError, match=r"run\.yaml: space\."):
        overview_of(tmp_path / "run.yaml")

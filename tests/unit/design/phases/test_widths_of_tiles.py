"""What alignment buys, by pencil: a toy chip whose time is that of whole tiles of 128 columns."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from chipwise.design.phases.alignment import alignment
from chipwise.errors import DoesNotFit
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design

H100 = datasheet.load("h100-sxm")  # tiles of 256 columns


def design(width: int) -> Design:
    return Design(arch=uniform(vocab_size=512, d_model=256, depth=2, heads=4, ffn_width=width), weights="bf16")


def tiles_s(asked: Design) -> dict:
    """A second for each tile of 256 columns of the feed-forward."""
    taken = -(-asked.arch.layers[0].ffn.width // 256)
    return {"ttft_p50": (taken, None, None), "tpot_p50": (2 * taken, taken, 3 * taken)}


@pytest.mark.parametrize(
    ("width", "said"),
    [
        # eight columns more than two tiles are three: 3 / 2 - 1
        (512, r"FFN width 512 is a multiple of 256; at 520 \(\+1.6 %\) TTFT \+50 %, TPOT \+50 %"),
        # 300 columns take two tiles, as 512 do
        (300, r"FFN width 300 is not a multiple of 256; at 512 \(\+71 %\) TTFT \+0 %, TPOT \+0 %"),
    ],
)
def test_a_width_is_compared_with_the_one_next_to_it(width: int, said: str) -> None:
    found = alignment(design(width), SimpleNamespace(measures=False, predict=tiles_s), H100)
    assert found is not None
    assert re.search(said, found)
    assert "model width 256 is a multiple of 256; at 264 (+3.1 %) TTFT +0 %" in found


def test_prices_that_know_no_tiles_say_nothing() -> None:
    def refuses(asked: Design) -> dict:
        raise DoesNotFit("too large")

    assert alignment(design(512), SimpleNamespace(measures=True, predict=tiles_s), H100) is None
    assert alignment(design(512), SimpleNamespace(measures=False, predict=tiles_s), None) is None
    assert alignment(design(512), SimpleNamespace(measures=False, predict=refuses), H100) is None

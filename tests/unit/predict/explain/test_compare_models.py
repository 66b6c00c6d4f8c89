"""Comparisons: every pair has an answer or a reason, and winners win by the bound that is named."""

from __future__ import annotations

import re

import pytest

from chipwise import api
from chipwise.errors import UnknownName

MODELS = ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-8B")


def test_fewer_kv_heads_win_long_decodes_by_moving_less() -> None:
    found = api.compare(MODELS, devices=["a100-sxm-80gb", "h100-sxm"], prompt=32_000)
    assert found.devices == ("a100-sxm-80gb", "h100-sxm")
    for device in found.devices:
        winner = next(each for each in found.winners if (each.device, each.metric) == (device, "tpot_p50"))
        assert winner.model == MODELS[1]
        assert re.fullmatch(r"it moves \d+ % as many bytes", winner.why)
        times = found.at(MODELS[0], device).estimate.tpot_s / found.at(MODELS[1], device).estimate.tpot_s  # type: ignore[union-attr]
        assert winner.times_better == pytest.approx(times)


def test_what_does_not_fit_says_so_and_does_not_win() -> None:
    found = api.compare(MODELS, devices=["rtx-4080"], prompt=8192, weights="own")
    cell = found.at(MODELS[0], "rtx-4080")
    assert cell.estimate is None
    assert "too much" in cell.problem


def test_answers_are_those_of_estimate() -> None:
    found = api.compare(["gpt2"], devices=["l4"], prompt=100, new=20)
    assert found.at("gpt2", "l4").estimate.tpot_s == pytest.approx(  # type: ignore[union-attr]
        api.estimate("gpt2", device="l4", prompt=100, new=20).tpot_s
    )
    assert found.winners[0].times_better is None


def test_an_encoder_wins_no_decode() -> None:
    found = api.compare(["bert-base-uncased", "gpt2"], devices=["l4"], prompt=128)
    assert {(each.metric, each.model) for each in found.winners if each.metric == "tpot_p50"} == {("tpot_p50", "gpt2")}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName):
        api.compare(["gpt-2000"], devices=["l4"])
    with pytest.raises(UnknownName):
        api.compare(["gpt2"], devices=["l44"])


def test_where_part_of_a_batch_fits_the_cell_is_of_that_part_and_says_so() -> None:
    """Llama-2-7B keeps 0.5 MB a token: five prompts of 32,000 need 84 GB beside 13.5 GB of weights; four fit."""
    asked = {"prompt": 32_000, "batch": 5}
    found = api.compare(["meta-llama/Llama-2-7b-hf"], devices=["a100-sxm-80gb", "l4"], **asked)
    part, none = (found.at("meta-llama/Llama-2-7b-hf", device) for device in ("a100-sxm-80gb", "l4"))
    assert part.note == "memory holds 4 of 5 requests at once, the others wait"
    alone = api.estimate("meta-llama/Llama-2-7b-hf", device="a100-sxm-80gb", prompt=32_000, batch=4)
    assert part.estimate.tpot_s == pytest.approx(alone.tpot_s)
    assert none.estimate is None
    assert "too much" in none.problem
    assert "would fit" in none.problem

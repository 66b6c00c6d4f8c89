"""Models that are not known are answered with the nearest known config, and every answer says so."""

from __future__ import annotations

import math

import pytest

import chipwise
from chipwise.core.errors import UnknownName
from chipwise.serve.table import estimate_rows
from chipwise.spec import families


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("google/gemma-3n-E4B-it", "google/gemma-4-E4B"),  # effective parameters are those that are computed
        ("LiquidAI/LFM2.5-230M", "LiquidAI/LFM2-350M"),
        ("mistralai/Mixtral-8x9B", "mistralai/Mixtral-8x7B-v0.1"),
        ("Qwen/Qwen4-40B-A3B", "Qwen/Qwen3.5-35B-A3B"),  # mixtures by their active parameters as well
    ],
)
def test_the_nearest_is_of_the_family_and_the_size(name: str, known: str) -> None:
    assert families.nearest(name) == known


@pytest.mark.parametrize(
    "name",
    [
        "nobody/knows",  # no size
        "arcee-ai/Trinity-Mini",
        "meta-llama/Lama-3-8B",  # no known family starts so
        "deepseek-ai/DeepSeek-V5-99000B",  # nothing is within a factor of three
    ],
)
def test_a_name_without_a_size_or_a_family_is_not_guessed(name: str) -> None:
    assert families.nearest(name) is None
    with pytest.raises(UnknownName, match="unknown model"):
        chipwise.estimate(name, device="rtx-4090")


def test_an_answer_names_whose_config_it_is_of() -> None:
    found = chipwise.estimate("LiquidAI/LFM2.5-230M", device="raspberry-pi-5")
    known = chipwise.estimate("LiquidAI/LFM2-350M", device="raspberry-pi-5")
    assert math.isclose(found.tpot_s, known.tpot_s)
    said = "LiquidAI/LFM2.5-230M is not known: answered with the nearest known config, LiquidAI/LFM2-350M"
    assert said in found.notes
    assert said in found.provenance
    assert "not known" not in known.provenance


def test_a_table_says_it_in_the_row() -> None:
    asked = {"device": "raspberry-pi-5", "isl": "64", "osl": "16", "batch": "1"}
    unknown, known = estimate_rows(
        [{**asked, "model": name} for name in ("LiquidAI/LFM2.5-230M", "LiquidAI/LFM2-350M")]
    )
    assert unknown["tpot_s"] == known["tpot_s"]
    assert "nearest known config, LiquidAI/LFM2-350M" in str(unknown["provenance"])
    assert "not known" not in str(known["provenance"])

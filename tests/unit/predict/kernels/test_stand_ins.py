"""Models that stand for others in tables of published runs, of the maintainers' fits alone."""

from __future__ import annotations

import pytest

from chipwise_fitting.stand_ins import nearest, stand_in


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("google/gemma-4n-E4B-it", "google/gemma-4-E4B"),  # effective parameters are those that are computed
        ("LiquidAI/LFM2.5-230M", "LiquidAI/LFM2-350M"),
        ("mistralai/Mixtral-8x9B", "mistralai/Mixtral-8x7B-v0.1"),
        ("Qwen/Qwen4-40B-A3B", "Qwen/Qwen3.5-35B-A3B"),  # mixtures by their active parameters as well
    ],
)
def test_the_nearest_is_of_the_family_and_the_size(name: str, known: str) -> None:
    assert nearest(name) == stand_in(name) == known


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
    assert nearest(name) is None
    assert stand_in(name) == name


def test_a_known_model_stands_for_itself() -> None:
    assert stand_in("llama3.1:8b") == "llama3.1:8b"

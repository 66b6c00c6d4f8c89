"""Training with and without activation checkpointing: the price is one forward pass, the gain is memory."""

from __future__ import annotations

import pytest
from explain_cases import case

from chipwise.predict.explain.notes import checkpointing, checkpointing_note


def test_recomputing_costs_about_a_third_and_frees_memory() -> None:
    """Forward, twice that backward, and the forward again: 4/3, less the head and the optimiser."""
    found = checkpointing(case("gpt2", batch=8, prompt_tokens=1024))
    assert found is not None
    assert found.slower is not None
    assert 1.1 < found.slower < 4 / 3
    assert found.recomputed_bytes is not None
    assert found.kept_bytes is not None
    assert found.recomputed_bytes < found.kept_bytes
    assert f"{found.slower:.2f} times as long" in checkpointing_note(found)


def test_what_fits_one_way_only_says_which() -> None:
    """2.8 G parameters x 16 bytes are 44 GB of states; activations of 16 sequences are more than the other 36 GB."""
    found = checkpointing(case("EleutherAI/pythia-2.8b", batch=16, prompt_tokens=2048))
    assert found is not None
    assert (found.kept_s, found.slower) == (None, None)
    assert "only with activation checkpointing" in checkpointing_note(found)


@pytest.mark.parametrize("model", ["meta-llama/Llama-2-70b-hf"])
def test_what_fits_in_no_way_says_so(model: str) -> None:
    found = checkpointing(case(model))
    assert found is not None
    assert "does not fit" in checkpointing_note(found)

"""A training step explained: parts that add up, what its rules may touch, what checkpointing buys."""

from __future__ import annotations

import pytest
from explain_cases import case

from chipwise import api
from chipwise.errors import InputError
from chipwise.predict.explain.explanation import explain_case, to_data
from chipwise.predict.explain.gains import advise
from chipwise.predict.explain.html import page
from chipwise.predict.explain.wording import gain_text


def step(model: str = "gpt2", **asked: object) -> dict[str, object]:
    return {"model": model, "task": "train", "batch": 8, "prompt_tokens": 1024, "runtime": "torch-compile"} | asked


def test_the_parts_of_a_step_add_up_to_it() -> None:
    for checkpoint in (False, True):
        found = explain_case(case(**step(checkpoint=checkpoint)))  # type: ignore[arg-type]
        (phase,) = found.phases
        assert sum(part.seconds for part in phase.parts) == pytest.approx(found.estimate.ttft_s)
        assert ("computed again" in {part.name for part in phase.parts}) is checkpoint
        assert phase.verdict.startswith("training is compute-bound")


def test_a_step_is_that_of_the_training_estimate() -> None:
    found = case(**step()).estimate  # type: ignore[arg-type]
    known = api.estimate_training("gpt2", device="a100-sxm-80gb", prompt=1024, batch=8)
    assert found.ttft_s == known.step.value
    assert found.metrics["throughput"].value == pytest.approx(known.tokens_per_s)
    assert found.peak_memory_bytes == known.peak_memory_bytes


def test_advice_on_training_touches_no_format_and_no_requests() -> None:
    told = advise(case(**step()), every=True)  # type: ignore[arg-type]
    assert told
    assert {advice.proposal.touches for advice in told}.isdisjoint({"precision", "batching"})
    assert {gain.metric for advice in told for gain in advice.gains} <= {
        "step", "throughput", "usd_per_1k_tokens", "peak_memory",
    }  # fmt: skip


def test_checkpointing_is_priced_both_ways() -> None:
    """Forward, twice that backward, and the layers' forward again: less than 4/3 of the time."""
    kept, again = (case(**step(checkpoint=flag)) for flag in (False, True))  # type: ignore[arg-type]
    memory = next(each for each in advise(kept, every=True) if each.rule == "checkpointing")
    time = next(each for each in advise(again, every=True) if each.rule == "checkpointing")
    assert memory.headline.metric == "peak_memory"
    assert memory.headline.ratio.value > 1.5
    assert time.headline.metric == "step"
    assert 1.1 < time.headline.ratio.value < 4 / 3
    assert gain_text(time.headline).startswith("step time ")


def test_what_does_not_fit_is_told_to_recompute_first() -> None:
    """2.8 G parameters x 16 bytes and the activations of 16 sequences are more than 80 GB; recomputed they are less."""
    told = advise(case(**step("EleutherAI/pythia-2.8b", batch=16, prompt_tokens=2048)))  # type: ignore[arg-type]
    urgent = [advice for advice in told if advice.proposal.urgent]
    assert "checkpointing" in {advice.rule for advice in urgent}


def test_the_answer_as_data_names_the_task() -> None:
    data = to_data(explain_case(case(**step())))  # type: ignore[arg-type]
    assert data["task"] == "train"
    assert set(data["metrics"]) == {"step", "throughput", "usd_per_1k_tokens"}
    assert any("from published timings, not measured" in note for note in data["notes"])


def test_training_here_is_measured_instead() -> None:
    with pytest.raises(InputError, match="chipwise train"):
        api.explain("gpt2", device="here", train=True)


def test_the_page_of_a_step_has_one_waterfall_and_no_curves() -> None:
    text = page("gpt2", explain_case(case(**step())))  # type: ignore[arg-type]
    assert "Where a training step goes" in text
    assert 'id="waterfall-prefill"' in text
    assert 'id="waterfall-decode"' not in text
    assert 'id="plot-curve-0"' not in text

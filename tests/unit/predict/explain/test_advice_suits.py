"""Advice suits the runtime and the hardware that were asked about, and says what else it changes."""

from __future__ import annotations

import re

import pytest
from explain_cases import case
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.predict.explain.gains import advise
from chipwise.predict.explain.wording import side_effects

OTHERS = {
    "llama.cpp": ("vLLM:", "SGLang:", "TensorRT-LLM:", "llm-compressor", "fp8", "nvfp4", "w8a8"),
    "sglang": ("vLLM: --", "TensorRT-LLM: ", "llama.cpp"),
    "trtllm": ("vLLM: --", "SGLang: ", "llama.cpp"),
}


@pytest.mark.parametrize("runtime", OTHERS)
def test_options_are_those_of_the_runtime(runtime: str) -> None:
    for asked in ({}, {"batch": 4, "prompt": 8192, "shared": 4096}):
        names = {"prompt": "prompt_tokens", "shared": "shared_tokens"}
        question = {names.get(name, name): value for name, value in asked.items()}
        found = case("meta-llama/Llama-2-7b-hf", "rtx-4090", runtime=runtime, **question)
        for each in advise(found, every=True):
            for other in OTHERS[runtime]:
                assert other not in each.proposal.how, each.rule


def test_other_chips_are_suggested_only_where_asked_for() -> None:
    model = {"device": "rtx-4090", "runtime": "llama.cpp", "weights": "q8_0"}
    assert all(each.proposal.touches != "hardware" for each in api.explain("gpt2", every=True, **model).advice)
    found = api.explain("gpt2", device="a100-pcie-80gb", every=True, other_chips=True).advice
    assert any(each.proposal.touches == "hardware" for each in found)


def test_phones_and_macs_have_no_captured_graphs() -> None:
    for device in ("apple-m3-max", "snapdragon-8-gen-3"):
        found = api.explain("gpt2", device=device, runtime="llama.cpp", weights="fp16", every=True)
        assert not any("captured" in part.why for phase in found.phases for part in phase.parts)
        assert not any(each.rule in ("graphs", "runtime_fusion") for each in found.advice)


def test_side_effects_are_signed_changes_of_the_metric() -> None:
    """Half the price is -50 %, 3.4 times the price is +240 %: no number is to be read upside down."""
    for each in api.explain("meta-llama/Llama-3.1-8B", device="h100-sxm", every=True).advice:
        text = side_effects(each)
        for gain in each.gains:
            change = gain.after / gain.before - 1
            if gain != each.headline and abs(change) >= 0.02:
                assert ("+" if change > 0 else "-") in text
        assert "besides" not in text


def test_at_most_five_pieces_of_advice_are_shown_and_the_rest_on_request() -> None:
    runner = CliRunner()
    ask = ["explain", "meta-llama/Llama-2-7b-hf", "--device", "a100-sxm-80gb", "--prompt", "32000"]
    short, long = (runner.invoke(app, [*ask, *more]).output for more in ([], ["--all"]))
    numbered = re.compile(r"^ ?(\d+)\. ", re.MULTILINE)
    shown, tried = numbered.findall(short), numbered.findall(long)
    assert len(shown) <= 5 < len(tried)
    gains = [float(gain) for gain in re.findall(r": ([\d.,]+)x ", short)]
    assert min(gains) >= 1.05
    assert "(1.97 to 1.97)" not in long
    for number in shown:  # --all numbers them alike
        title = re.search(rf"^ ?{number}\. (.*)$", short, re.MULTILINE)
        assert title is not None
        assert title[0] in long


def test_explain_and_estimate_agree_on_batches_that_do_not_fit() -> None:
    asked = {"device": "a100-sxm-80gb", "batch": 5, "prompt": 32_000}
    found, cost = (ask("meta-llama/Llama-2-7b-hf", **asked) for ask in (api.explain, api.estimate))
    assert found.estimate.tpot_s == pytest.approx(cost.tpot_s)
    assert any("of 5 requests at once" in note for note in found.notes)


def test_the_figures_have_intervals() -> None:
    text = CliRunner().invoke(app, ["explain", "gpt2", "--device", "l4"]).output
    assert re.search(
        r"TTFT [\d.]+ ms \((?:[\d.]+ to [\d.]+|no interval[^)]*)\), TPOT [\d.]+ ms \([\d.]+ to [\d.]+\)", text
    )

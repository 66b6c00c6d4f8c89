"""Rules that rest on what the user says: shared prefixes, measured sensitivity of layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from explain_cases import case

from chipwise import api
from chipwise.errors import SpecError
from chipwise.model.arch.arch import uniform
from chipwise.predict.explain.cases import calibrated_case, read_sensitivity
from chipwise.predict.explain.explanation import explain_case
from chipwise.predict.explain.gains import advise, rules
from support.machines import round_machine

LLAMA3 = "meta-llama/Llama-3.1-8B"


def test_a_shared_prefix_is_computed_once() -> None:
    """Of 8,192 tokens 8,064 are shared: 128 are left to compute, 64 times fewer; weights are still streamed."""
    asked = case(LLAMA3, prompt_tokens=8192, shared_tokens=8064)
    found = next(each for each in advise(asked) if each.rule == "prefix_sharing")
    assert found.headline.metric == "ttft_p50"
    assert 10 < found.headline.ratio.value < 64
    assert found.headline.after > 0.005  # 16 GB through 2 TB/s are 8 ms, most of a pass of few tokens


def test_the_longer_what_is_shared_the_more_is_won() -> None:
    gains = []
    for shared in (1024, 2048, 4000):
        asked = case(LLAMA3, prompt_tokens=4096, shared_tokens=shared)
        gains += [each.headline.ratio.value for each in advise(asked) if each.rule == "prefix_sharing"]
    assert gains == sorted(gains)
    assert gains[0] > 1.2  # a quarter of the prompt


def test_a_whole_prompt_leaves_its_last_token() -> None:
    (proposal,) = rules()["prefix_sharing"](case(LLAMA3, prompt_tokens=512, shared_tokens=512))
    assert proposal.changed.cached_tokens == 511


def test_curves_are_of_prompts_that_share_nothing() -> None:
    """Their shortest prompt has one token, fewer than are shared."""
    shared, alone = (api.explain(LLAMA3, device="h100-sxm", shared=tokens) for tokens in (512, 0))
    assert shared.saturation == alone.saturation


def test_integers_in_the_cache_where_the_runtime_has_them() -> None:
    titles = []
    for runtime in ("vllm", "trtllm"):
        asked = case("meta-llama/Llama-2-7b-hf", prompt_tokens=32_000, runtime=runtime)  # on an A100: no 8-bit floats
        titles.append([proposal.title for proposal in rules()["kv_precision"](asked)])
    assert titles == [[], ["KV cache in int8"]]


def test_more_positions_than_were_learned_are_noted() -> None:
    notes = api.explain("gpt2", device="h100-sxm", prompt=5000).notes
    assert any("1,024 learned positions and the request needs 5,128" in note for note in notes)


def test_integer_products_halve_the_time_of_computing_on_an_a100() -> None:
    """624 TOP/s against 312 TFLOP/s; weights of one byte in place of two."""
    wide, narrow = (case(LLAMA3, weights=weights).estimate for weights in ("bf16", "w8a8"))
    products = [
        next(cost for cost in each.prefill if cost.place.endswith("gate_up")).compute_s for each in (wide, narrow)
    ]
    assert products[0] == pytest.approx(2 * products[1])  # type: ignore[operator]
    assert narrow.ttft_s < 0.8 * wide.ttft_s


def test_a_recurrence_has_no_prefix_to_share() -> None:
    asked = case("nvidia/Nemotron-H-8B-Base-8K", prompt_tokens=2048, shared_tokens=1024)
    assert list(rules()["prefix_sharing"](asked)) == []


def test_more_shared_tokens_than_the_prompt_has_are_refused() -> None:
    with pytest.raises(SpecError, match="at most the 512 tokens of a prompt, not 600"):
        case(LLAMA3, prompt_tokens=512, shared_tokens=600)


def test_layers_that_lose_most_stay_wide(tmp_path: Path) -> None:
    """32 layers, of which 5, 11 and 20 lose most: a tenth of them are kept, three."""
    losses = [0.001] * 32
    losses[5], losses[11], losses[20] = 0.1, 0.2, 0.05
    file = tmp_path / "sensitivity.json"
    file.write_text(json.dumps(losses))
    asked = case(LLAMA3, device="h100-sxm", sensitivity=read_sensitivity(file))
    first, second = rules()["layer_precision"](asked)
    assert first.changed.wide_layers == {5, 11, 20}
    assert first.changed.wide_layers < second.changed.wide_layers
    assert first.quality.startswith("a loss of 0.029 instead of 0.379")  # 29 x 0.001 of 0.35 + 0.029


def test_without_a_measurement_the_ends_stay_wide() -> None:
    first, _ = rules()["layer_precision"](case(LLAMA3, device="h100-sxm"))
    assert first.changed.wide_layers == {0, 1, 31}


def test_gains_lie_between_none_and_all_layers_narrow() -> None:
    told = {each.proposal.title: each for each in advise(case(LLAMA3, device="h100-sxm"), every=True)}
    whole = told["weights in fp8"].headline.ratio.value
    some = told["weights in fp8, except for 3 of 32 layers"].headline.ratio.value
    fewer = told["weights in fp8, except for 8 of 32 layers"].headline.ratio.value
    assert 1 < fewer < some < whole


@pytest.mark.parametrize("given", [{"a": 1}, [], ["x"], "nowhere.json"])
def test_a_sensitivity_that_is_no_list_of_numbers_is_refused(given: object) -> None:
    with pytest.raises(SpecError):
        read_sensitivity(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "said"), [("[1, 2]", "must list one loss for each of the 12 layers, not 2"), ("{}", "list")]
)
def test_a_file_of_losses_that_does_not_suit_is_named(content: str, said: str, tmp_path) -> None:
    (tmp_path / "losses.json").write_text(content)
    with pytest.raises(SpecError, match=rf"losses\.json: sensitivity: .*{said}"):
        api.explain("gpt2", device="l4", sensitivity=tmp_path / "losses.json")


def test_a_loss_for_each_layer_is_needed() -> None:
    with pytest.raises(SpecError, match="32 layers, not 3"):
        api.explain(LLAMA3, device="h100-sxm", sensitivity=[0.1, 0.2, 0.3])


def test_here_the_layers_that_lose_most_stay_as_wide_as_they_are() -> None:
    """Of five layers, the fourth sharing the first's weights, one of the four kinds is kept: a tenth and a quarter."""
    layer = uniform(vocab_size=512, d_model=64, depth=1, heads=4, ffn_width=128).layers[0]
    layers = (layer, layer, layer, replace(layer, shares=0), layer)
    arch = uniform(vocab_size=512, d_model=64, depth=1, heads=4, ffn_width=128, max_tokens=64)
    sizes = {"prompt_tokens": 32, "new_tokens": 8}
    words = []
    for losses in ((0.3, 0.1, 0.2, 0.0, 0.1), (0.1, 0.1, 0.2, 0.0, 0.5), ()):
        asked = calibrated_case(
            replace(arch, layers=layers), round_machine(), weights="int8", sensitivity=losses, **sizes
        )
        (proposal,) = rules()["layer_precision"](asked)
        words.append(proposal.changed.weights)
        (advice,) = advise(asked, every=True, chosen={"layer_precision": rules()["layer_precision"]})
        assert advice.headline.ratio.value > 1  # fewer bytes are streamed
        assert words[-1] in proposal.how
    assert words == [
        "int8/int4/int4/int8/int4 head:int8",
        "int4/int4/int4/int4/int8 head:int8",
        "int8/int4/int4/int8/int4 head:int8",  # nothing was measured: the first
    ]
    narrow = calibrated_case(arch, round_machine(), weights="int4", **sizes)
    assert not list(rules()["layer_precision"](narrow))


def test_a_model_whose_layers_differ_in_format_is_explained_here() -> None:
    """A layer of int4, one of int8: narrower weights are still advice, for the latter."""
    arch = uniform(vocab_size=512, d_model=64, depth=2, heads=4, ffn_width=128, max_tokens=256)
    asked = calibrated_case(arch, round_machine(), weights="int4/int8 head:int8", prompt_tokens=32, new_tokens=8)
    narrower, wider = (
        calibrated_case(arch, round_machine(), weights=name, prompt_tokens=32, new_tokens=8).estimate.tpot_s
        for name in ("int4", "int8")
    )
    assert narrower < asked.estimate.tpot_s < wider
    proposed = [proposal.title for proposal in rules()["weight_precision"](asked)]
    assert proposed == ["weights in int4"]
    assert explain_case(asked, every=True).advice

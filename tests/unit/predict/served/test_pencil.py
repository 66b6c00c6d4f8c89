"""Memory, MFU and the decode step's position by pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise import api
from chipwise.errors import DoesNotFit
from chipwise.hardware import datasheet
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.groups import grouped
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import Step


def test_activations_of_gpt2_are_two_copies_of_the_stream_and_the_widest_product() -> None:
    """1,000 positions in BF16: the stream and its sum, 2 x 1,000 x 768 x 2 bytes; the FFN's 768 in and 3,072 out."""
    cost = cost_of(Request(model="gpt2", deployment=Deployment(device="h100-sxm"), prompt_tokens=1_000))
    assert cost.memory.row(0)["activations"] == 2 * 1_000 * 768 * 2 + 1_000 * (768 + 3_072) * 2


def test_the_cache_of_gpt2_is_keys_and_values_of_every_position() -> None:
    """12 layers x 2 x 12 heads of 64 x 2 bytes are 36,864 bytes a token; 1,128 tokens of 3 requests."""
    cost = cost_of(
        Request(model="gpt2", deployment=Deployment(device="h100-sxm"), prompt_tokens=1_000, new_tokens=128, batch=3)
    )
    assert cost.memory.row(0)["cache"] == 36_864 * 1_128 * 3


def test_mfu_counts_six_flops_a_parameter_and_token() -> None:
    """Qwen3-0.6B has 0.596 G parameters; an H100 multiplies 989.4 TFLOP/s in BF16."""
    step = api.estimate_training("Qwen/Qwen3-0.6B", device="h100-sxm", batch=8, prompt=1_024)
    flops = 6 * 0.596e9 * 8 * 1_024
    peak = datasheet.load("h100-sxm").peak("bf16")
    assert peak == pytest.approx(989.4e12, rel=1e-3)
    assert step.mfu == pytest.approx(flops / (step.step.value * peak), rel=1e-3)


def test_the_decode_step_is_the_one_in_the_middle_of_the_answer() -> None:
    (group,), _ = grouped(
        [Request(model="gpt2", deployment=Deployment(device="h100-sxm"), prompt_tokens=1_000, new_tokens=128)]
    )
    step = group.decode().step
    assert step.past_tokens.tolist() == [1_000 + 64]
    assert step.query_tokens.tolist() == [1]


@pytest.mark.parametrize("device", ["h100-sxm", "h200-sxm", "l40s", "rtx-4090"])
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B"])
def test_fewer_bytes_a_weight_are_never_slower_for_one_request(model: str, device: str) -> None:
    """Where the device multiplies the format. (On B200, vLLM's FP8 products were measured to be slower; notes.)"""
    wide, narrow = (api.estimate(model, device=device, weights=weights).tpot_s for weights in ("bf16", "fp8"))
    assert narrow <= wide


def test_what_does_not_fit_is_said_of_each_device_where_there_are_several() -> None:
    """Llama 2 70B in BF16, 138 GB, on one H100 and on two replicas."""
    for plan, several in (({}, False), ({"dp": 2}, True)):
        with pytest.raises(DoesNotFit) as caught:
            api.estimate("meta-llama/Llama-2-70b-hf", device="h100-sxm", batch=2, **plan)
        assert (" on each device (" in str(caught.value)) is several


def test_inputs_of_every_layer_are_normed_for_every_layer() -> None:
    """Gemma 4's second table: a token has one row of ``layer_inputs`` values in each layer."""
    setting = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm"))).setting
    arch = replace(setting.arch, stem=replace(setting.arch.stem, layer_inputs=8))
    parts = lower_pass(replace(setting, arch=arch), Step(batch=3, query_tokens=5, past_tokens=0))
    norms = [(part.op.rows, part.op.width) for part in parts if part.place == "layer_inputs.norm"]
    assert (3 * 5 * 12, 8) in norms

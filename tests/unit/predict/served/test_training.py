"""Training steps against pencil arithmetic and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.errors import DoesNotFit, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.training_step import training_step

H100 = datasheet.load("h100-sxm")


def setting(**plan: int) -> Setting:
    found = resolved(
        Request(model="Qwen/Qwen3-0.6B", deployment=Deployment(device="h100-sxm", runtime="torch-compile"))
    ).setting
    return replace(found, plan=Plan(**plan))


def test_adam_in_mixed_precision_keeps_16_bytes_a_parameter() -> None:
    step = training_step(setting(), H100, batch=8, tokens=1024)
    # A tied head is the table and has no states of its own: 0.596 G parameters.
    assert step.memory_bytes["states"] == pytest.approx(16 * 0.596e9, rel=0.001)


def test_the_backward_pass_takes_about_twice_the_forward_pass() -> None:
    step = training_step(setting(), H100, batch=8, tokens=1024)
    assert 1.8 < step.backward_s / step.forward_s < 2.6
    assert 0.1 < step.mfu < 0.8


def test_checkpointing_trades_seconds_for_bytes() -> None:
    plain = training_step(setting(), H100, batch=8, tokens=1024)
    again = training_step(setting(), H100, batch=8, tokens=1024, checkpoint=True)
    assert again.memory_bytes["activations"] < 0.5 * plain.memory_bytes["activations"]
    assert plain.step.value < again.step.value < 1.5 * plain.step.value


def test_replicas_share_the_batch_and_sum_gradients() -> None:
    one = training_step(setting(), H100, batch=8, tokens=1024)
    two = training_step(setting(dp=2), H100, batch=16, tokens=1024)
    assert two.devices == 2
    assert one.step.value <= two.step.value < 1.2 * one.step.value
    assert two.tokens_per_s > 1.6 * one.tokens_per_s


def test_what_does_not_fit_or_divide() -> None:
    with pytest.raises(DoesNotFit, match="activation checkpointing"):
        training_step(setting(), H100, batch=256, tokens=4096)
    with pytest.raises(SpecError, match="7 sequences cannot be divided into 2 replicas"):
        training_step(setting(dp=2), H100, batch=7, tokens=1024)


def test_an_odd_number_of_tokens_misaligns_nothing() -> None:
    """A weight's gradient sums over tokens, which are no rows: 8 x 1,023 of them are hardly cheaper than 8 x 1,024."""
    odd, even = (training_step(setting(), H100, batch=8, tokens=tokens) for tokens in (1023, 1024))
    assert 0.97 < odd.step.value / even.step.value < 1.01
    single, padded = (training_step(setting(), H100, batch=1, tokens=tokens) for tokens in (1023, 1024))
    assert 0.97 < single.step.value / padded.step.value < 1.01


def test_checkpointing_is_advised_only_where_it_may_be_enough() -> None:
    """States of 0.6 G parameters, 9.5 GB, leave room on 24 GB; those of 7 G, 108 GB, do not."""
    l4 = datasheet.load("l4")
    with pytest.raises(DoesNotFit, match=r"too much; activation checkpointing \(--checkpoint\), states sharded"):
        training_step(setting(), l4, batch=64, tokens=4096)
    with pytest.raises(
        DoesNotFit,
        match=r"and l4 has 24\.2 GB: .* too much; states sharded over replicas \(--dp 8 --zero 3\), more devices",
    ):
        training_step(setting(), l4, batch=64, tokens=4096, checkpoint=True)
    large = resolved(
        Request(model="meta-llama/Llama-2-7b-hf", deployment=Deployment(device="l4", runtime="torch-compile"))
    ).setting
    with pytest.raises(
        DoesNotFit, match=r"too much; states sharded .*, more devices \(--tp, --pp\) or fewer sequences per microbatch"
    ):
        training_step(large, l4, batch=1, tokens=128)


@pytest.mark.parametrize(("vocabulary", "published_s"), [(50_257, 0.096), (50_304, 0.093)])
def test_gpt_2_on_an_a100_takes_a_step_as_published(vocabulary: int, published_s: float) -> None:
    """16 x 1,024 tokens of GPT-2 124M, bf16, compiled, flash attention, on one A100 80 GB: 96 ms, padded 93 ms.

    References:
        Karpathy 2024, "Let's reproduce GPT-2 (124M)", the steps of section 2.
    """
    asked = resolved(
        Request(model="openai-community/gpt2", deployment=Deployment(device="a100-sxm-80gb", runtime="torch-compile"))
    ).setting
    asked = replace(asked, arch=asked.arch.of_vocabulary(vocabulary))
    step = training_step(asked, datasheet.load("a100-sxm-80gb"), batch=16, tokens=1024)
    assert step.step.value == pytest.approx(published_s, rel=0.12)
    assert step.step.low < published_s < step.step.high


def test_the_loss_passes_over_all_logits() -> None:
    """823 M logits of 16 x 1,024 tokens: compiled 4 passes of 2 bytes, 6.6 GB; eager (6 + 8) + (6 + 16) bytes each."""
    logits = 16 * 1024 * 50_257
    for runtime, bytes_each in (("torch-compile", 8), ("torch-eager", 36)):
        asked = resolved(
            Request(model="openai-community/gpt2", deployment=Deployment(device="a100-sxm-80gb", runtime=runtime))
        ).setting
        step = training_step(asked, datasheet.load("a100-sxm-80gb"), batch=16, tokens=1024)
        loss = [cost for cost in step.operators if ".loss" in cost.place]
        memory_s = sum(cost.memory_s or 0.0 for cost in loss)
        assert memory_s == pytest.approx(bytes_each * logits / 2.039e12, rel=0.01)
        assert sum(cost.latency_s for cost in loss) > memory_s


def test_an_encoder_without_a_head_has_no_loss_over_logits() -> None:
    asked = resolved(
        Request(
            model="google-bert/bert-base-uncased", deployment=Deployment(device="h100-sxm", runtime="torch-compile")
        )
    ).setting
    step = training_step(asked, H100, batch=8, tokens=512)
    assert not any("loss" in cost.place for cost in step.operators)

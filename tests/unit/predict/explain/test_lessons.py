"""Published lessons come out of the prices; none of them is written down in a rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from explain_cases import case

from chipwise.hardware import datasheet
from chipwise.hardware.runtime import RUNTIMES, Runtime
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.matmul import Matmul
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Bound
from chipwise.predict.explain.gains import advise
from chipwise.predict.explain.rules.change import each_attention
from chipwise.predict.explain.saturation import token_curve
from chipwise.predict.explain.waterfall import bound_of
from chipwise.predict.kernels import alignment, times_of
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.training_step import TrainingEstimate, training_step

A100 = datasheet.load("a100-sxm-80gb")
MEGATRON = replace(RUNTIMES["torch-eager"], fused=frozenset({"qkv"}))  # attention as separate products, as in 2023


def train(arch: ArchSpec, runtime: Runtime, *, batch: int, tokens: int) -> TrainingEstimate:
    setting = Setting(arch=arch, plan=Plan(), formats=formats_of("bf16"), runtime=runtime)
    return training_step(setting, A100, batch=batch, tokens=tokens, checkpoint=True)


def teraflops(m: float, k: float, n: float) -> float:
    op = Matmul(m=m, k=k, n=n, weights="bf16", activations="bf16")  # type: ignore[arg-type]
    return float(2 * m * k * n / times_of(op, A100).latency_s) / 1e12


@pytest.mark.parametrize(("batch", "published"), [(12, 1.25), (8, 1.137)])
def test_padding_the_vocabulary_of_nanogpt_helps_on_an_a100(batch: int, published: float) -> None:
    """A step at 50,257 over one at 50,304: "about 25 %" (Karpathy 2023) and 127,345 / 112,046 tokens/s (Raschka 2025).

    Neither figure went into what a misaligned row costs: that is from single products.
    """
    assert published in {timing.slower for timing in alignment.published().steps}
    asked = case("gpt2", task="train", batch=batch, prompt_tokens=1024, runtime="torch-compile")
    found = next(each for each in advise(asked) if each.rule == "vocabulary")
    assert found.headline.metric == "step"
    assert 1 < found.headline.ratio.low < published < found.headline.ratio.high
    assert found.headline.ratio.value > 1.1


def test_a_runtime_that_pads_the_vocabulary_itself_is_not_advised_to() -> None:
    """vLLM rounds the head's rows up to multiples of 64; PyTorch runs 50,257 columns."""
    for runtime, sizes in (("vllm", {786 * 64}), ("torch-eager", {50_257})):
        asked = case("gpt2", batch=64, runtime=runtime)
        heads = [cost for cost in asked.estimate.decode if cost.place == "head.logits"]
        assert {cost.work.flops // (2 * 64 * 768) for cost in heads} == sizes
        assert any(cost.doubt for cost in heads) is (runtime == "torch-eager")


def test_llama_2_7b_and_llama_3_8b_differ_by_their_kv_heads_at_32k() -> None:
    """32 KV heads against 8: four times the cache, 0.5 MB a token against 0.125; Llama 3 is the larger model."""
    old = case("meta-llama/Llama-2-7b-hf", prompt_tokens=32_000)
    new = case("meta-llama/Llama-3.1-8B", prompt_tokens=32_000)
    assert old.estimate.memory_bytes["cache"] / new.estimate.memory_bytes["cache"] == pytest.approx(4, rel=0.01)
    assert old.estimate.tpot_s / new.estimate.tpot_s > 1.4
    advice = {each.rule: each for each in advise(old)}
    assert advice["kv_heads"].headline.ratio.value > 1.4
    grouped = [each for each in advise(new, every=True) if each.rule == "kv_heads"]
    assert all(each.headline.ratio.value < advice["kv_heads"].headline.ratio.value for each in grouped)


def test_heads_of_80_train_slower_than_heads_of_128() -> None:
    """GPT-3 2.7B: 32 heads of 80 against 20 of 128, FLOPs alike. Published: tens of per cent, shapes up to 39 %.

    References:
        Anthony et al. 2024, arXiv:2401.14489.
    """
    neo = resolve("EleutherAI/pythia-2.8b")
    seconds = {}
    for heads in (64, 40, 32, 20):
        shaped = each_attention(neo, lambda b, n=heads: replace(b, heads=n, kv_heads=n, head_size=2560 // n))  # type: ignore[misc]
        found = train(shaped, MEGATRON, batch=2, tokens=2048)
        seconds[heads] = found.forward_s + found.backward_s
    assert 1.05 < seconds[32] / seconds[20] < 1.39
    assert seconds[64] > seconds[40] > seconds[32] > seconds[20]  # its figures of attention against h / a


def test_advice_for_heads_of_80_is_heads_of_128() -> None:
    told = advise(case("EleutherAI/pythia-2.8b", prompt_tokens=8192, new_tokens=1, runtime=MEGATRON))
    found = [each for each in told if each.rule == "head_size"]
    assert found[0].proposal.title == "heads of 80 -> 20 heads of 128"
    assert found[0].headline.metric == "ttft_p50"


def test_products_of_an_a100_come_in_waves() -> None:
    """One tile more than fills 108 SMs costs a wave: throughput over the width is a saw (its figure of GEMMs)."""
    widths = np.arange(1024, 8193, 128)
    rates = np.array([teraflops(2048, 4096, float(width)) for width in widths])
    falls = rates[1:] / rates[:-1]
    assert falls.min() < 0.9
    assert rates[-1] > 1.2 * rates[0]  # and rises with size all the same


def test_llamas_ffn_width_beats_eight_thirds_of_the_hidden_size() -> None:
    """8/3 x 4096 = 10922 is no multiple of anything; Llama-2-7B has 11008 = 86 x 128 (its section on SwiGLU)."""
    assert teraflops(8192, 4096, 11_008) > teraflops(8192, 4096, 10_922)


def test_70b_in_fp16_on_two_a100_decodes_from_memory_and_prefills_by_computing() -> None:
    asked = case("meta-llama/Llama-2-70b-hf", weights="fp16", tp=2)
    assert bound_of(asked.operators("decode"))[0] is Bound.MEMORY
    assert bound_of(asked.operators("prefill"))[0] is Bound.COMPUTE
    assert asked.estimate.mbu["decode"] > 10 * asked.estimate.mfu["decode"]


@pytest.mark.parametrize("model", ["bert-base-uncased", "bert-large-uncased", "answerdotai/ModernBERT-base"])
def test_an_embedding_model_saturates_an_a100_in_the_hundreds_of_tokens(model: str) -> None:
    """About 600 tokens are published for one such model (Voyage AI, token-count-based batching, 2025)."""
    curve = token_curve(case(model))
    assert curve is not None
    assert curve.saturation is not None
    assert 100 < curve.saturation < 1000

"""Every rule proposes where it applies and keeps quiet where it does not; what it proposes can be priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from explain_cases import case

from chipwise.errors import ChipwiseError
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.gains import RATES, advise, rules

LLAMA2, LLAMA3 = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-8B"
BERT, MIXTRAL, QWEN_MOE = "bert-base-uncased", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"


def small(**changes: Any) -> ArchSpec:
    """A Llama of 0.3 G parameters with everything a multiple of 128."""
    shape: dict[str, Any] = {"vocab_size": 32_768, "d_model": 1024, "depth": 16, "heads": 8, "ffn_width": 2816}
    return uniform(**(shape | {"tie_embeddings": False} | changes))


def shared(arch: ArchSpec) -> ArchSpec:
    """Every second layer with the weights of the one before."""
    layers = tuple(replace(layer, shares=i - 1) if i % 2 else layer for i, layer in enumerate(arch.layers))
    return replace(arch, layers=layers)


Where = tuple[str | ArchSpec, dict[str, Any]]
CASES: dict[str, tuple[Where, Where]] = {  # where it applies, where not
    "activation_precision": ((LLAMA3, {}), (LLAMA3, {"device": "h100-sxm"})),
    "aligned_width": ((small(ffn_width=2730), {}), (small(), {})),
    "batch": ((LLAMA3, {}), (BERT, {})),
    "checkpointing": ((LLAMA3, {"task": "train"}), (LLAMA3, {})),
    "depth": ((small(), {}), (small(depth=4), {})),
    "fits": (("meta-llama/Llama-2-70b-hf", {}), (LLAMA3, {})),
    "fused_chains": ((LLAMA3, {"runtime": "torch-eager"}), (LLAMA3, {"runtime": "vllm"})),
    "grouped_experts": ((QWEN_MOE, {"runtime": "torch-eager"}), (LLAMA3, {"runtime": "torch-eager"})),
    "graphs": ((LLAMA3, {"runtime": "torch-eager"}), (LLAMA3, {"runtime": "vllm"})),
    "head_size": (("EleutherAI/pythia-2.8b", {}), (LLAMA3, {})),
    "hidden_size": ((small(d_model=1000, head_size=128), {}), (small(), {})),
    "kv_heads": ((LLAMA2, {"prompt_tokens": 32_000}), (BERT, {"prompt_tokens": 512})),
    "kv_heads_by_layer": ((LLAMA2, {"prompt_tokens": 32_000}), (LLAMA2, {"prompt_tokens": 64})),
    "kv_precision": ((LLAMA2, {"prompt_tokens": 32_000, "device": "h100-sxm"}), (LLAMA2, {"prompt_tokens": 32_000})),
    "latent_attention": ((LLAMA2, {"prompt_tokens": 32_000}), ("google/gemma-2-9b", {"prompt_tokens": 32_000})),
    "layer_precision": ((LLAMA3, {}), (LLAMA3, {"weights": "fp8", "device": "h100-sxm"})),
    "other_chip": ((LLAMA3, {}), (BERT, {})),
    "parallel_blocks": ((LLAMA3, {}), (BERT, {})),
    "plain_ffn": ((small(), {"prompt_tokens": 4096, "new_tokens": 1}), (small(gated=False), {})),
    "power": ((LLAMA3, {"batch": 256, "prompt_tokens": 2048}), (LLAMA3, {"batch": 1, "prompt_tokens": 64})),
    "prefix_sharing": ((LLAMA3, {"shared_tokens": 900}), (LLAMA3, {})),
    "prefill_chunks": ((LLAMA3, {"runtime": "torch-eager", "batch": 8}), (LLAMA3, {"batch": 8})),
    "replicated_kv": ((MIXTRAL, {"tp": 16, "batch": 64}), (LLAMA3, {"tp": 8, "batch": 64})),
    "runtime_fusion": ((LLAMA3, {"runtime": "torch-eager"}), (LLAMA3, {"device": "xeon-8480-plus"})),
    "small_vocabulary": ((small(vocab_size=131_072, depth=6), {}), (LLAMA3, {})),
    "tensor_parallel": ((LLAMA3, {}), (LLAMA3, {"device": "rtx-4090"})),
    "tied_embeddings": ((small(), {}), (small(tie_embeddings=True), {})),
    "vocabulary": (("gpt2", {}), (small(), {})),
    "wave_quantisation": ((small(ffn_width=2816), {"prompt_tokens": 2048}), (BERT, {"device": "tpu-v5e"})),
    "weight_precision": ((LLAMA3, {}), (LLAMA3, {"weights": "int4"})),
    "weight_sharing": ((small(), {}), (shared(small()), {})),
    "window": ((LLAMA2, {"prompt_tokens": 32_000}), (LLAMA2, {"prompt_tokens": 512})),
}


def test_every_rule_is_asked_about_here() -> None:
    assert set(CASES) == set(rules())


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_proposes_where_it_applies(name: str) -> None:
    model, asked = CASES[name][0]
    asked_case = case(model, **asked)
    proposals = list(rules()[name](asked_case))
    assert proposals
    answers = asked_case.pricer.price([proposal.changed for proposal in proposals])
    assert not all(isinstance(answer, ChipwiseError) for answer in answers), answers
    for proposal in proposals:
        assert proposal.changed != asked_case.question
        assert proposal.title
        assert proposal.how
        assert proposal.source
        assert proposal.headline in {
            "ttft_p50",
            "tpot_p50",
            "peak_memory",
            "usd_per_1k_tokens",
            "joules_per_token",
            *RATES,
        }


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_rule_is_silent_where_it_does_not_apply(name: str) -> None:
    model, asked = CASES[name][1]
    assert list(rules()[name](case(model, **asked))) == []


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_rule_speaks_of_decode_to_an_encoder(name: str) -> None:
    arch = resolve(BERT)
    assert not arch.causal
    for proposal in rules()[name](case(arch, prompt_tokens=512)):
        assert proposal.changed.arch.layers[0].attention.causal is False
        assert proposal.headline in {
            "ttft_p50",
            "peak_memory",
            "tpot_p50",
        }
        assert proposal.touches != "batching"


def test_fewer_kv_heads_divide_the_heads() -> None:
    """GPT-2 XL has 25 heads: a quarter is 6, which does not divide them; 5 does."""
    asked = case("openai-community/gpt2-xl", prompt_tokens=900)
    for name in ("kv_heads", "kv_heads_by_layer"):
        (proposal,) = rules()[name](asked)
        assert proposal.title.startswith("25 KV heads -> 5")
    prime = uniform(vocab_size=1024, d_model=448, depth=4, heads=7, kv_heads=7, ffn_width=1024, max_tokens=32_768)
    (proposal,) = rules()["kv_heads"](case(prime, prompt_tokens=30_000))
    assert proposal.title == "7 KV heads -> 1"


def test_what_does_not_fit_is_advised_before_all_else() -> None:
    told = advise(case("meta-llama/Llama-2-70b-hf"))
    urgent = [advice.proposal.urgent for advice in told]
    assert urgent[0]
    assert urgent == sorted(urgent, reverse=True)


def test_parallel_blocks_sum_over_devices_once_a_layer() -> None:
    """Two sums a layer of 32 become one; the head's gathering stays."""
    asked = case(LLAMA3, tp=2)
    proposal = next(iter(rules()["parallel_blocks"](asked)))
    answer = asked.pricer.price([proposal.changed])[0]
    assert isinstance(answer, CostEstimate)
    sums = [
        sum(cost.count for cost in costs if cost.kind == "all_reduce")
        for costs in (asked.estimate.decode, answer.decode)
    ]
    assert sums == [64, 32]
    assert list(rules()["parallel_blocks"](case(proposal.changed.arch))) == []

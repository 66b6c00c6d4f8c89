"""Served models against transformers' own: the same weights are read and the same products computed.

Torch's counter counts every matrix product of a forward pass; the lowering must come to the same number, exactly.
Attention's own products are left out (torch computes masked pairs too), and so are scans and convolutions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from chipwise.hardware.runtime import runtime_named
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.model.published import families
from chipwise.model.published.read import from_config, resolve
from chipwise.predict.served.formats import Formats
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import PlacedOp, Setting, Step

BATCH, TOKENS = 2, 24

# Dense models of every family, whole, without memory (torch's meta device).
WHOLE = (
    "gpt2",
    "Llama-3.2-1B",
    "Qwen2.5-0.5B",
    "Qwen3-0.6B",
    "Qwen3.5-27B",
    "Mistral-7B-v0.1",
    "gemma-2-2b",
    "gemma-3-270m",
    "Phi-4-mini-instruct",
    "pythia-70m",
    "opt-125m",
    "falcon-7b",
    "SmolLM3-3B",
    "OLMo-2-0425-1B",
    "granite-3.3-2b-base",
    "glm-4-9b-chat-hf",
    "GLM-4-9B-0414",
    "all-MiniLM-L6-v2",
    "ModernBERT-base",
    "t5-small",
)
NARROW = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
PLAIN = {"num_hidden_layers": 2, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN = {
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
LATER = {
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
# Models with experts, made small: where tokens go depends on values, so they have to be computed.
SMALL: dict[str, dict[str, Any]] = {
    "Mixtral-8x7B-v0.1": PLAIN,
    "granite-3.1-3b-a800m-base": PLAIN,
    "gpt-oss-20b": {**PLAIN, "head_dim": 16},
    "MiniMax-M2": {**PLAIN, "head_dim": 16},
    "Qwen1.5-MoE-A2.7B": QWEN,
    "Qwen3-30B-A3B": {**QWEN, "head_dim": 16},
    "Qwen3-Next-80B-A3B-Instruct": {
        **QWEN,
        "head_dim": 16,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "GLM-4.5": {**LATER, "head_dim": 16},
    "DeepSeek-V2-Lite": {**LATER, **LATENT},
    "DeepSeek-V3": {**LATER, **LATENT, "q_lora_rank": 24},
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*-E",
        "intermediate_size": 96,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
    },
}


def lowered(arch: ArchSpec, *, batch: int, tokens: int) -> tuple[PlacedOp, ...]:
    setting = Setting(arch=arch, plan=Plan(), formats=Formats(), runtime=runtime_named("torch-eager"))
    step = Step(
        batch=batch,
        query_tokens=tokens,
        past_tokens=0,
        encoder_tokens=tokens,
        encode=bool(arch.encoder),
        every_logit=True,
    )
    return lower_pass(setting, step)


def product_flops(parts: tuple[PlacedOp, ...]) -> float:
    """FLOPs of products with weights, biases and activations left out."""
    total = 0.0
    for part in parts:
        op = part.op
        if isinstance(op, Matmul):
            total += part.count * 2 * op.m * op.k * op.n
        elif isinstance(op, ExpertsOp):
            total += part.count * op.rows() * 2 * (3 if op.gated else 2) * op.d_model * op.width
    return total


def counted(config: dict[str, Any], device: str) -> int:
    """What torch counts of products with weights in transformers' model of ``config``."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    fields = dict(config)
    kind = fields.pop("model_type")
    maker = {"t5": AutoModelForSeq2SeqLM, "bert": AutoModel, "modernbert": AutoModel}.get(kind, AutoModelForCausalLM)
    described = AutoConfig.for_model(kind, **fields)
    described._attn_implementation = "eager"
    described._experts_implementation = "eager"
    with torch.device(device):
        model = maker.from_config(described).eval()
        tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    inputs = {"input_ids": tokens} | ({"decoder_input_ids": tokens} if kind == "t5" else {})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    counts = counter.get_flop_counts()["Global"]
    return sum(flops for op, flops in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))


@pytest.mark.parametrize("name", WHOLE)
def test_dense_models_compute_what_torch_counts(name: str) -> None:
    parts = lowered(resolve(name), batch=BATCH, tokens=TOKENS)
    assert product_flops(parts) == counted(families.config_of(name), "meta")


@pytest.mark.parametrize(("name", "changes"), SMALL.items())
def test_models_with_experts_compute_what_torch_counts(name: str, changes: dict[str, Any]) -> None:
    """FLOPs do not depend on the routing, because each token uses the same number of experts."""
    config = families.config_of(name) | NARROW | changes
    parts = lowered(from_config(config, name=name), batch=BATCH, tokens=TOKENS)
    assert product_flops(parts) == counted(config, "cpu")


@pytest.mark.parametrize("name", families.names())
def test_a_pass_of_many_tokens_reads_every_weight_once(name: str) -> None:
    """All but tables that are looked up, and few scalars of heads and experts (decays, sinks, score corrections)."""
    arch = resolve(name).without_towers()
    parts = [part for part in lowered(arch, batch=20_000, tokens=1) if not isinstance(part.op, EmbeddingOp)]
    read = sum(part.count * part.op.work().weight_bytes for part in parts) / 2
    looked_up = arch.stem.token_types * arch.d_model + arch.vocab_size * arch.stem.layer_inputs * len(arch.layers)
    if not arch.head.writes or not arch.tie_embeddings:
        looked_up += arch.vocab_size * arch.d_model
    if arch.positions == "learned":
        looked_up += (arch.max_tokens + arch.stem.extra_positions) * arch.d_model
    if not arch.reads_tokens:
        looked_up += vectors_of_images(arch)
    if isinstance(arch.encoder_stem, SoundStem):
        looked_up += arch.encoder_stem.position_rows * arch.d_model
        every = [each for layer in (*arch.encoder, *arch.layers) for each in (layer.attention, layer.cross) if each]
        looked_up -= sum(keys_without_bias(attention) for attention in every)
    assert read == pytest.approx(arch.parameters() - looked_up, rel=1e-4)


def keys_without_bias(attention: Attention) -> int:
    """Queries, keys and values are one product: keys without a bias are given one of zeros there."""
    return int((attention.qkv_bias and not attention.key_bias) * attention.kv_heads * attention.head_size)


def vectors_of_images(arch: ArchSpec) -> int:
    """What is no matrix of a model that reads images or sound.

    Class tokens, position biases, factors of blocks, norms that convolutions hold, a head's bias.
    """
    assert not arch.reads_tokens
    found = (arch.stem.prefix_tokens + arch.stem.mask_token) * arch.d_model + arch.outputs
    stages = [(arch.d_model, 1, layer.attention, layer) for layer in arch.layers]
    if isinstance(arch.stem, ImageStem):
        stages += [(stage.d_model, stage.depth, stage.attention, None) for stage in arch.stem.stages]
    for d_model, depth, attention, layer in stages:
        vectors = attention.heads * (attention.relative_buckets + attention.cosine) - keys_without_bias(attention)
        vectors += attention.relative_keys * 2 * attention.heads * attention.head_size
        if layer is not None:
            vectors += 2 * layer.scale * d_model + 2 * (layer.conv is not None) * d_model
        found += depth * vectors
    return int(found)

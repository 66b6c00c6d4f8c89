"""Mixtures of experts: Mixtral, Qwen, gpt-oss, MiniMax-M2, GLM, Granite, Hunyuan, Llama 4, DeepSeek, Kimi-K2."""

from __future__ import annotations

from dataclasses import replace

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, LatentAttention
from chipwise.model.published.common import attention, biased, decoder, gated, layers, windows_of
from chipwise.model.published.dense import qwen_windows, rotated
from chipwise.model.published.fields import Fields


def _expert(fields: Fields, width: str = "moe_intermediate_size", *, bias: bool = False) -> FeedForward:
    return FeedForward(width=fields.size(width), activation=fields.activation("hidden_act", "silu"), bias=bias)


def read_mixtral(fields: Fields) -> dict[str, object]:
    """Mixtral: in each layer, experts (eight by default) instead of a single feed-forward."""
    windows = (fields.size_or_none("sliding_window"),) * fields.depth()
    return decoder(fields, layers(fields, attention(fields), _mixtral(fields), windows))


def _mixtral(fields: Fields) -> MixtureOfExperts:
    return MixtureOfExperts(
        experts=fields.size("num_local_experts", 8),
        active=fields.size("num_experts_per_tok", 2),
        expert=_expert(fields, "intermediate_size"),
    )


def read_granitemoe(fields: Fields) -> dict[str, object]:
    """Granite 3 MoE. An ArchSpec cannot represent Granite's multipliers, so each is noted as an unknown field."""
    return decoder(fields, layers(fields, biased(fields), _mixtral(fields)))


def read_qwen2_moe(fields: Fields) -> dict[str, object]:
    """Qwen1.5-MoE and Qwen2-MoE: a shared expert scaled by a separate gate."""
    heads = attention(fields, qkv_bias=fields.take("qkv_bias", bool, True))
    return _qwen_moe(fields, heads, shared=True)


def read_qwen3_moe(fields: Fields) -> dict[str, object]:
    """Qwen3 MoE."""
    heads = biased(fields, head_size=128, qk_norm=True)
    return _qwen_moe(fields, heads, shared=False)


def _qwen_moe(fields: Fields, heads: Attention, *, shared: bool) -> dict[str, object]:
    mixture = qwen_mixture(fields, shared=shared)
    windows, sparse = qwen_windows(fields), qwen_sparse(fields)
    dense = not all(sparse) or fields.maybe("intermediate_size") is not None
    plain = gated(fields) if dense else None
    stack = [
        Layer(attention=replace(heads, window=window), ffn=mixture if on else plain)
        for window, on in zip(windows, sparse, strict=True)
    ]
    return decoder(fields, stack)


def qwen_mixture(fields: Fields, *, shared: bool) -> MixtureOfExperts:
    """The experts of a Qwen layer."""
    width = fields.size("shared_expert_intermediate_size", 0, least=0)
    return MixtureOfExperts(
        experts=fields.size("num_experts"),
        active=fields.size("num_experts_per_tok"),
        expert=_expert(fields),
        shared=FeedForward(width=width) if shared and width else None,
        shared_gate=bool(shared and width),
    )


def qwen_sparse(fields: Fields) -> list[bool]:
    """Whether each layer has experts instead of a dense feed-forward."""
    step, plain = fields.size("decoder_sparse_step", 1), fields.layer_numbers("mlp_only_layers", fields.depth())
    return [i not in plain and (i + 1) % step == 0 for i in range(fields.depth())]


def read_gpt_oss(fields: Fields) -> dict[str, object]:
    """gpt-oss: biases everywhere, attention sinks, a window in every other layer."""
    heads = biased(fields, head_size=64, default=True, sinks=True)
    mixture = MixtureOfExperts(
        experts=fields.size("num_local_experts"),
        active=fields.size("num_experts_per_tok", fields.size_or_none("experts_per_token")),
        expert=_expert(fields, "intermediate_size", bias=True),
        router_bias=True,
    )
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(fields.depth())]
    return decoder(
        fields, layers(fields, heads, mixture, windows_of(fields, fields.size_or_none("sliding_window"), default))
    )


def read_minimax_m2(fields: Fields) -> dict[str, object]:
    """MiniMax-M2: query and key norms over all heads."""
    heads = attention(fields, qk_norm=True, qk_norm_over="all")
    mixture = MixtureOfExperts(
        experts=fields.size("num_local_experts"),
        active=fields.size("num_experts_per_tok"),
        expert=_expert(fields, "intermediate_size"),
        score_bias=fields.take("use_routing_bias", bool, True),
    )
    return decoder(fields, layers(fields, heads, mixture))


def _deepseek_ffn(fields: Fields, *, score_bias: bool) -> list[FeedForward | MixtureOfExperts]:
    """The feed-forward of each layer: dense layers first, then experts with shared experts."""
    count = fields.size_or_none("n_routed_experts")
    plain = gated(fields)
    if count is None:
        return [plain] * fields.depth()
    first = fields.size("first_k_dense_replace", 0, least=0)
    if fields.size("moe_layer_freq", 1) != 1:
        raise SpecError(
            "must be 1 (all layers after the dense ones have experts); other values are not supported",
            field="moe_layer_freq",
        )
    expert = _expert(fields)
    together = fields.size("n_shared_experts", 0, least=0)
    mixture = MixtureOfExperts(
        experts=count,
        active=fields.size("num_experts_per_tok"),
        expert=expert,
        shared=FeedForward(width=together * expert.width, activation=expert.activation) if together else None,
        score_bias=score_bias,
    )
    return [plain if i < first else mixture for i in range(fields.depth())]


def read_glm4_moe(fields: Fields) -> dict[str, object]:
    """GLM-4.5 and 4.6: one or more dense layers first, then experts with a shared expert."""
    heads = attention(
        fields,
        head_size=128,
        qkv_bias=fields.take("attention_bias", bool, False),
        qk_norm=fields.take("use_qk_norm", bool, False),
    )
    stack = [Layer(attention=heads, ffn=ffn) for ffn in _deepseek_ffn(fields, score_bias=True)]
    return decoder(fields, stack)


def read_deepseek(fields: Fields) -> dict[str, object]:
    """DeepSeek V2 and V3, Kimi-K2, GLM-4.7-Flash: latent attention; multi-token prediction heads are ignored."""
    block = LatentAttention(
        heads=fields.size("num_attention_heads"),
        q_rank=fields.size_or_none("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_size=fields.size("qk_nope_head_dim"),
        rope_size=fields.size("qk_rope_head_dim"),
        value_size=fields.size("v_head_dim"),
        bias=fields.take("attention_bias", bool, False),
    )
    v3 = fields.take("topk_method", str, "greedy") == "noaux_tc" or fields.maybe("model_type") != "deepseek_v2"
    return decoder(fields, [Layer(attention=block, ffn=ffn) for ffn in _deepseek_ffn(fields, score_bias=v3)])


def read_hunyuan_moe(fields: Fields) -> dict[str, object]:
    """Hunyuan-A13B: a shared expert in every layer, and norms on queries and keys."""
    heads = biased(fields, qk_norm=fields.take("use_qk_norm", bool, True))
    expert = _expert(fields)
    together = fields.size("num_shared_expert", 1, least=0)
    mixture = MixtureOfExperts(
        experts=fields.size("num_experts"),
        active=fields.size("moe_topk"),
        expert=expert,
        shared=FeedForward(width=together * expert.width) if together else None,
    )
    return decoder(fields, layers(fields, heads, mixture))


def read_llama4(fields: Fields) -> dict[str, object]:
    """Llama 4's text model: chunked attention with rotary positions, except in every fourth layer; a shared expert."""
    heads = biased(fields)
    expert = _expert(fields, "intermediate_size")
    plain = FeedForward(width=fields.size("intermediate_size_mlp", 16384))
    mixture = MixtureOfExperts(
        experts=fields.size("num_local_experts", 16),
        active=fields.size("num_experts_per_tok", 1),
        expert=expert,
        shared=expert,
    )
    step = fields.size("interleave_moe_layer_step", 1)
    sparse = fields.layer_numbers("moe_layers", fields.depth()) or range(step - 1, fields.depth(), step)
    chunk = fields.size("attention_chunk_size", 8192)
    near, far = replace(heads, chunk=chunk), replace(heads, rope=False)
    stack = [
        Layer(attention=near if rope else far, ffn=mixture if i in sparse else plain)
        for i, rope in enumerate(rotated(fields))
    ]
    return decoder(fields, stack)

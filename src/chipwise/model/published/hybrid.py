"""Hybrid decoders: Qwen3-Next and Qwen3.5 (gated delta), Nemotron-H (Mamba-2), LFM2 (convolution)."""

from __future__ import annotations

from collections.abc import Sequence

from chipwise.errors import SpecError, short
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import GatedDelta, Mamba2, Mixer, ShortConv
from chipwise.model.arch.trunk import check_depth
from chipwise.model.published.common import attention, biased, decoder, gated, layer_types, ungated
from chipwise.model.published.experts import qwen_mixture, qwen_sparse
from chipwise.model.published.fields import Fields

_SIGNS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def read_qwen3_next(fields: Fields) -> dict[str, object]:
    """Qwen3-Next and Qwen3.5: three gated delta layers, then an attention layer with an output gate."""
    full: Mixer = biased(fields, head_size=256, qk_norm=True, gate=True)
    linear: Mixer = GatedDelta(
        key_heads=fields.size("linear_num_key_heads", 16),
        value_heads=fields.size("linear_num_value_heads", 32),
        key_size=fields.size("linear_key_head_dim", 128),
        value_size=fields.size("linear_value_head_dim", 128),
        conv=fields.size("linear_conv_kernel_dim", 4),
    )
    every = fields.size("full_attention_interval", 4)
    default = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(fields.depth())]
    types = layer_types(fields, default, {"linear_attention", "full_attention"})
    sparse = qwen_sparse(fields) if fields.has("num_experts") else [False] * fields.depth()
    mixture = qwen_mixture(fields, shared=True) if any(sparse) else None
    plain = gated(fields) if not all(sparse) else None
    stack = [
        Layer(attention=full if kind == "full_attention" else linear, ffn=mixture if on else plain)
        for kind, on in zip(types, sparse, strict=True)
    ]
    # Norms add 1 to their weight, which changes logits but not costs.
    return decoder(fields, stack)


def read_nemotron_h(fields: Fields) -> dict[str, object]:
    """Nemotron-H and Nemotron 3: one block per layer (Mamba-2, attention, feed-forward or experts); no positions."""
    kinds = fields.items("layers_block_type") or [_SIGNS.get(s, s) for s in fields.take("hybrid_override_pattern", str)]
    makers = {"mamba": _mamba, "attention": _attention, "mlp": _dense, "moe": _mixture}
    check_depth(len(kinds), field="hybrid_override_pattern")
    for i, kind in enumerate(kinds):
        if kind not in makers:
            raise SpecError(f"layers of type {short(kind)} are not supported", field=f"hybrid_override_pattern[{i}]")
    if fields.depth("num_hidden_layers", len(kinds)) != len(kinds):
        raise SpecError(f"has {len(kinds)} layers; the config states {fields.depth()}", field="hybrid_override_pattern")
    made = {kind: makers[kind](fields) for kind in set(kinds)}
    return decoder(
        fields,
        [made[kind] for kind in kinds],
        positions="none",
        rope_theta=10_000.0,
        norm_eps=fields.take("layer_norm_epsilon", float, 1e-5),
    )


def _mamba(fields: Fields) -> Layer:
    block = Mamba2(
        heads=fields.size("mamba_num_heads"),
        head_size=fields.size("mamba_head_dim"),
        state_size=fields.size("ssm_state_size"),
        groups=fields.size("n_groups", 8),
        conv=fields.size("conv_kernel", 4),
        conv_bias=fields.take("use_conv_bias", bool, True),
        bias=fields.take("use_bias", bool, False),
    )
    return Layer(attention=block, ffn=None)


def _attention(fields: Fields) -> Layer:
    size = fields.size_or_none("attention_head_dim") or 128
    return Layer(attention=attention(fields, head_size=size, rope=False), ffn=None)


def _dense(fields: Fields) -> Layer:
    return Layer(attention=None, ffn=_plain(fields, "intermediate_size"))


def _mixture(fields: Fields) -> Layer:
    block: FeedForwardBlock = MixtureOfExperts(
        experts=fields.size("n_routed_experts"),
        active=fields.size("num_experts_per_tok"),
        expert=_plain(fields, "moe_intermediate_size"),
        shared=_plain(fields, "moe_shared_expert_intermediate_size"),
        score_bias=True,
        latent_size=fields.size_or_none("moe_latent_size"),
    )
    return Layer(attention=None, ffn=block)


def _plain(fields: Fields, width: str) -> FeedForward:
    bias = fields.take("mlp_bias", bool, False)
    return ungated(fields, fields.size(width), activation="mlp_hidden_act", default="relu2", bias=bias)


def read_lfm2(fields: Fields) -> dict[str, object]:
    """LFM2 and LFM2.5: gated short convolutions, with attention in some layers."""
    return _lfm2(fields, [_lfm2_plain(fields)] * fields.depth())


def read_lfm2_moe(fields: Fields) -> dict[str, object]:
    """LFM2's mixtures of experts: dense layers first."""
    first = fields.size("num_dense_layers", 2, least=0)
    mixture = MixtureOfExperts(
        experts=fields.size("num_experts", 32),
        active=fields.size("num_experts_per_tok", 4),
        expert=FeedForward(width=fields.size("moe_intermediate_size", 1792)),
        score_bias=fields.take("use_expert_bias", bool, True),
    )
    return _lfm2(fields, [gated(fields) if i < first else mixture for i in range(fields.depth())])


def _lfm2(fields: Fields, ffns: Sequence[FeedForwardBlock]) -> dict[str, object]:
    d_model = fields.size("hidden_size")
    conv: Mixer = ShortConv(
        width=d_model, taps=fields.size("conv_L_cache", 3), bias=fields.take("conv_bias", bool, False)
    )
    full: Mixer = attention(fields, qk_norm=True)
    attending = fields.layer_numbers("full_attn_idxs", fields.depth()) or set(range(fields.depth()))
    default = ["full_attention" if i in attending else "conv" for i in range(fields.depth())]
    types = layer_types(fields, default, {"full_attention", "conv"})
    stack = [
        Layer(attention=full if kind == "full_attention" else conv, ffn=ffn)
        for kind, ffn in zip(types, ffns, strict=True)
    ]
    tied = fields.take("tie_word_embeddings", bool, fields.take("tie_embedding", bool, True))
    return decoder(fields, stack, norm_eps=fields.take("norm_eps", float, 1e-5), tie_embeddings=tied)


def _lfm2_plain(fields: Fields) -> FeedForward:
    """The dense feed-forward.

    By default, the feed-forward's width is two thirds of the config's ``block_ff_dim`` (or ``intermediate_size``),
    rounded up to a multiple of ``block_multiple_of``.
    """
    width = fields.size("block_ff_dim", fields.size_or_none("intermediate_size"))
    if fields.take("block_auto_adjust_ff_dim", bool, True):
        multiple = fields.size("block_multiple_of", 256)
        scaled = int(fields.take("block_ffn_dim_multiplier", float, 1.0) * (2 * width // 3))
        width = -(-scaled // multiple) * multiple
    return FeedForward(width=width)

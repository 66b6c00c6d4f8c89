"""Gemma, Gemma 2, the text models of Gemma 3, and Gemma 4 with its mixtures of experts and per-layer inputs."""

from __future__ import annotations

from dataclasses import replace

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.common import Windows, biased, decoder, gated, layer_types, layers, windows_of
from chipwise.model.published.fields import Fields


def read_gemma(fields: Fields) -> dict[str, object]:
    """The first release of Gemma."""
    heads = biased(fields, head_size=256)
    name = "hidden_activation" if fields.maybe("hidden_activation") else "hidden_act"
    ffn = gated(fields, activation=name, default="gelu_pytorch_tanh")
    return decoder(fields, layers(fields, heads, ffn), tied=True)


def read_gemma2(fields: Fields) -> dict[str, object]:
    """Gemma 2: norms before and after each block, a window in every other layer, soft-capped scores."""
    softcap = fields.maybe("attn_logit_softcapping") if fields.has("attn_logit_softcapping") else 50.0
    heads = biased(fields, head_size=256, softcap=softcap)
    default = ["full_attention" if i % 2 else "sliding_attention" for i in range(fields.depth())]
    return _gemma(fields, heads, windows_of(fields, fields.size("sliding_window", 4096), default))


def read_gemma3(fields: Fields) -> dict[str, object]:
    """Gemma 3's text model: five layers with a window, then one global layer; norms on queries and keys."""
    heads = biased(fields, head_size=256, qk_norm=True)
    every = fields.size("sliding_window_pattern", fields.size_or_none("_sliding_window_pattern") or 6)
    default = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(fields.depth())]
    windows = windows_of(fields, fields.size("sliding_window", 4096), default)
    return _gemma(fields, heads, windows, rope_theta=fields.take("rope_theta", float, 1e6))


def _gemma(fields: Fields, heads: Attention, windows: Windows, **changes: object) -> dict[str, object]:
    ffn = gated(fields, activation="hidden_activation", default="gelu_pytorch_tanh")
    return decoder(fields, layers(fields, heads, ffn, windows), tied=True, norm_place="both", **changes)


def read_gemma4(fields: Fields) -> dict[str, object]:
    """Gemma 4's text model: layers with a window, and global layers with a different head size.

    In the large models, global layers use their keys as values. In the small models, the last layers read the KV cache
    of earlier layers, and each layer gets additional embeddings per token.
    """
    fields.notes.append("rope_parameters: rotary positions that differ between layers are not implemented")
    fields.maybe("rope_parameters")
    default = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(fields.depth())]
    types = layer_types(fields, default, {"full_attention", "sliding_attention"})
    shared = fields.size("num_kv_shared_layers", 0, least=0)
    if shared >= fields.depth():
        raise SpecError(f"must be less than the number of layers, not {shared}", field="num_kv_shared_layers")
    first = fields.depth() - shared
    double = fields.take("use_double_wide_mlp", bool, False)
    blocks = {kind: _attention4(fields, kind == "full_attention") for kind in set(types)}
    plain = {reuses: _plain4(fields, 2 if double and reuses else 1) for reuses in (False, True)}
    made: dict[tuple[str, bool], Layer] = {}
    for kind, reuses in {(kind, i >= first) for i, kind in enumerate(types)}:
        block = replace(blocks[kind], reuses_cache=reuses)
        made[kind, reuses] = Layer(attention=block, ffn=_ffn4(fields, plain[reuses]))
    stack = [made[kind, i >= first] for i, kind in enumerate(types)]
    width = fields.size("hidden_size_per_layer_input", 256, least=0)
    if width and fields.size("vocab_size_per_layer_input", fields.size("vocab_size")) != fields.size("vocab_size"):
        raise SpecError(
            "must equal the vocabulary size; a table of a different size is not supported",
            field="vocab_size_per_layer_input",
        )
    return decoder(fields, stack, tied=True, norm_place="both", rope_theta=1e6, layer_inputs=width)


def _attention4(fields: Fields, full: bool) -> Attention:
    heads = biased(fields, head_size=256, qk_norm=True)
    if not full:
        return replace(heads, window=fields.size("sliding_window", 512))
    same = fields.take("attention_k_eq_v", bool, False)
    own = fields.size_or_none("num_global_key_value_heads")
    kept = own if same and own else heads.kv_heads
    return replace(heads, head_size=fields.size("global_head_dim", 512), values_from_keys=same, kv_heads=kept)


def _plain4(fields: Fields, times: int) -> FeedForward:
    return FeedForward(
        width=times * fields.size("intermediate_size"),
        activation=fields.activation("hidden_activation", "gelu_pytorch_tanh"),
    )


def _ffn4(fields: Fields, plain: FeedForward) -> FeedForwardBlock:
    """``plain``, or a mixture of experts in which ``plain`` is the shared expert, which processes all tokens."""
    if not fields.take("enable_moe_block", bool, False):
        fields.skip("num_experts", "top_k_experts", "moe_intermediate_size")
        return plain
    return MixtureOfExperts(
        experts=fields.size("num_experts"),
        active=fields.size("top_k_experts"),
        expert=FeedForward(width=fields.size("moe_intermediate_size"), activation=plain.activation),
        shared=plain,
    )

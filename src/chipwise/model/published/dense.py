"""Llama and the dense decoders that follow it: Mistral, Qwen, SmolLM3, Phi-3, Granite, OLMo 2, GLM-4, ChatGLM."""

from __future__ import annotations

from dataclasses import replace

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.common import Windows, attention, decoder, depth, gated, layers, windows_of
from chipwise.model.published.fields import Fields


def read_llama(fields: Fields) -> dict[str, object]:
    """Llama 2 and 3, and models that use its config."""
    bias = fields.take("attention_bias", bool, False)
    ffn = gated(fields, bias=fields.take("mlp_bias", bool, False))
    return decoder(fields, layers(fields, attention(fields, qkv_bias=bias, out_bias=bias), ffn))


def read_mistral(fields: Fields) -> dict[str, object]:
    """Mistral. Without the field ``sliding_window``, the published window applies; null means no window."""
    fields.maybe("layer_types")
    window = fields.size_or_none("sliding_window") if fields.has("sliding_window") else 4096
    return decoder(fields, layers(fields, attention(fields), gated(fields), (window,) * depth(fields)))


def read_ministral3(fields: Fields) -> dict[str, object]:
    """Ministral 3 and Devstral 2: no window unless the config has one."""
    window = fields.size_or_none("sliding_window")
    return decoder(fields, layers(fields, attention(fields, head_size=128), gated(fields), (window,) * depth(fields)))


def read_qwen2(fields: Fields) -> dict[str, object]:
    """Qwen 2 and 2.5."""
    return decoder(fields, layers(fields, attention(fields, qkv_bias=True), gated(fields), qwen_windows(fields)))


def read_qwen3(fields: Fields) -> dict[str, object]:
    """Qwen 3, dense."""
    bias = fields.take("attention_bias", bool, False)
    heads = attention(fields, head_size=128, qkv_bias=bias, out_bias=bias, qk_norm=True)
    return decoder(fields, layers(fields, heads, gated(fields), qwen_windows(fields)))


def qwen_windows(fields: Fields) -> Windows:
    """The window of each layer: from ``layer_types``, else a window in the layers from ``max_window_layers`` on."""
    on = fields.take("use_sliding_window", bool, False)
    window = fields.size("sliding_window", 4096)
    first = fields.size("max_window_layers", 28, least=0)
    default = ["sliding_attention" if on and i >= first else "full_attention" for i in range(depth(fields))]
    return windows_of(fields, window if on else None, default)


def read_smollm3(fields: Fields) -> dict[str, object]:
    """SmolLM3: every fourth layer has no rotary positions."""
    bias = fields.take("attention_bias", bool, False)
    heads = attention(fields, qkv_bias=bias, out_bias=bias)
    ffn = gated(fields, bias=fields.take("mlp_bias", bool, False))
    for name in ("layer_types", "use_sliding_window", "sliding_window"):
        fields.maybe(name)
    stack = [Layer(attention=replace(heads, rope=rope), ffn=ffn) for rope in rotated(fields)]
    return decoder(fields, stack, tied=True)


def rotated(fields: Fields) -> list[bool]:
    """Mask of layers with rotary positions; ``no_rope_layers`` holds 1 for those."""
    every = fields.size("no_rope_layer_interval", 4)
    listed = fields.items("no_rope_layers") or [(i + 1) % every != 0 for i in range(depth(fields))]
    if len(listed) != depth(fields):
        raise SpecError(f"names {len(listed)} layers; num_hidden_layers is {depth(fields)}", field="no_rope_layers")
    return [bool(item) for item in listed]


def read_phi3(fields: Fields) -> dict[str, object]:
    """Phi-3, Phi-4 and Phi-4-mini."""
    fields.maybe("original_max_position_embeddings")
    window = (fields.size_or_none("sliding_window"),) * depth(fields)
    return decoder(fields, layers(fields, attention(fields), gated(fields), window))


def read_granite(fields: Fields) -> dict[str, object]:
    """Granite 3, dense. Its multipliers do not fit an ArchSpec and are noted as unsupported fields."""
    return read_llama(fields)


def read_olmo2(fields: Fields) -> dict[str, object]:
    """OLMo 2: norms after the blocks; query and key norms over all heads."""
    bias = fields.take("attention_bias", bool, False)
    heads = attention(fields, qkv_bias=bias, out_bias=bias, qk_norm=True, qk_norm_over="all")
    return decoder(fields, layers(fields, heads, gated(fields)), norm_place="post")


def read_glm(fields: Fields) -> dict[str, object]:
    """GLM-4 (first release)."""
    fields.notes.append("partial_rotary_factor: half of each head rotated, by neighbours, is not computed")
    heads = attention(fields, head_size=128, qkv_bias=fields.take("attention_bias", bool, True))
    return decoder(fields, layers(fields, heads, gated(fields)))


def read_glm4(fields: Fields) -> dict[str, object]:
    """GLM-4-0414: as GLM-4, with norms before and after each block."""
    return read_glm(fields) | {"norm_place": "both"}


def read_chatglm(fields: Fields) -> dict[str, object]:
    """ChatGLM 2 and 3: rotary positions on half of each head, with interleaved pairs; other field names."""
    fields.notes.append("rotary positions: half of each head rotated, by neighbours, is not computed")
    heads = fields.size("num_attention_heads")
    one = fields.take("multi_query_attention", bool, False)
    block = Attention(
        heads=heads,
        kv_heads=fields.size("multi_query_group_num") if one else heads,
        head_size=fields.size("kv_channels", 128),
        qkv_bias=fields.take("add_qkv_bias", bool, False),
    )
    ffn = FeedForward(width=fields.size("ffn_hidden_size"), bias=fields.take("add_bias_linear", bool, False))
    return {
        "vocab_size": fields.size("padded_vocab_size"),
        "d_model": fields.size("hidden_size"),
        "layers": (Layer(attention=block, ffn=ffn),) * fields.depth("num_layers"),
        "max_tokens": fields.size("seq_length", 2048),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, False),
        "norm_eps": fields.take("layernorm_epsilon", float, 1e-5),
    }

"""Llama and the dense decoders that follow it: Mistral, Qwen, SmolLM3, Phi-3, Granite, OLMo 2, GLM-4, ChatGLM."""

from __future__ import annotations

from dataclasses import replace

from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.common import Windows, attention, biased, decoder, gated, layers, windows_of
from chipwise.model.published.fields import Fields


def read_llama(fields: Fields) -> dict[str, object]:
    """Llama 2 and 3, and models that use its config."""
    ffn = gated(fields, bias=fields.take("mlp_bias", bool, False))
    return decoder(fields, layers(fields, biased(fields), ffn))


def read_mistral(fields: Fields) -> dict[str, object]:
    """Mistral. If the field ``sliding_window`` is missing, the published window applies; null means no window."""
    fields.maybe("layer_types")
    window = fields.size_or_none("sliding_window") if fields.has("sliding_window") else 4096
    return decoder(fields, layers(fields, attention(fields), gated(fields), (window,) * fields.depth()))


def read_ministral3(fields: Fields) -> dict[str, object]:
    """Ministral 3 and Devstral 2: no window unless the config has one."""
    window = fields.size_or_none("sliding_window")
    return decoder(fields, layers(fields, attention(fields, head_size=128), gated(fields), (window,) * fields.depth()))


def read_qwen2(fields: Fields) -> dict[str, object]:
    """Qwen 2 and 2.5."""
    return decoder(fields, layers(fields, attention(fields, qkv_bias=True), gated(fields), qwen_windows(fields)))


def read_qwen3(fields: Fields) -> dict[str, object]:
    """Qwen 3, dense."""
    heads = biased(fields, head_size=128, qk_norm=True)
    return decoder(fields, layers(fields, heads, gated(fields), qwen_windows(fields)))


def qwen_windows(fields: Fields) -> Windows:
    """The window of each layer: from ``layer_types``, else a window in all layers from ``max_window_layers`` on."""
    on = fields.take("use_sliding_window", bool, False)
    window = fields.size("sliding_window", 4096)
    first = fields.size("max_window_layers", 28, least=0)
    default = ["sliding_attention" if on and i >= first else "full_attention" for i in range(fields.depth())]
    return windows_of(fields, window if on else None, default)


def read_smollm3(fields: Fields) -> dict[str, object]:
    """SmolLM3: every fourth layer has no rotary positions."""
    heads = biased(fields)
    ffn = gated(fields, bias=fields.take("mlp_bias", bool, False))
    fields.skip("layer_types", "use_sliding_window", "sliding_window")
    stack = [Layer(attention=replace(heads, rope=rope), ffn=ffn) for rope in rotated(fields)]
    return decoder(fields, stack, tied=True)


def rotated(fields: Fields) -> list[bool]:
    """Whether each layer has rotary positions. Despite its name, ``no_rope_layers`` is 1 for layers that have them."""
    every = fields.size("no_rope_layer_interval", 4)
    listed = fields.items("no_rope_layers") or [(i + 1) % every != 0 for i in range(fields.depth())]
    if len(listed) != fields.depth():
        raise SpecError(f"has {len(listed)} entries, but num_hidden_layers is {fields.depth()}", field="no_rope_layers")
    return [bool(item) for item in listed]


def read_phi3(fields: Fields) -> dict[str, object]:
    """Phi-3, Phi-4 and Phi-4-mini."""
    fields.maybe("original_max_position_embeddings")
    window = (fields.size_or_none("sliding_window"),) * fields.depth()
    return decoder(fields, layers(fields, attention(fields), gated(fields), window))


def read_olmo2(fields: Fields) -> dict[str, object]:
    """OLMo 2: norms after the blocks; query and key norms over all heads."""
    heads = biased(fields, qk_norm=True, qk_norm_over="all")
    return decoder(fields, layers(fields, heads, gated(fields)), norm_place="post")


def read_glm(fields: Fields) -> dict[str, object]:
    """GLM-4 (first release)."""
    fields.notes.append("partial_rotary_factor: rotary positions on half of each head, in pairs, are not implemented")
    heads = attention(fields, head_size=128, qkv_bias=fields.take("attention_bias", bool, True))
    return decoder(fields, layers(fields, heads, gated(fields)))


def read_glm4(fields: Fields) -> dict[str, object]:
    """GLM-4-0414: like GLM-4, but with norms before and after each block."""
    return read_glm(fields) | {"norm_place": "both"}


def read_chatglm(fields: Fields) -> dict[str, object]:
    """ChatGLM 2 and 3: rotary positions on half of each head, with interleaved pairs.

    The config's field names differ from Llama's.
    """
    fields.notes.append("rotary positions on half of each head, in pairs, are not implemented")
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

"""Writes an ArchSpec as the config of one of transformers' Llama-style classes."""

from __future__ import annotations

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import Activation
from chipwise.model.kinds.text.form import DECODER

_ACTIVATION_NAMES: dict[Activation, str] = {
    "silu": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
}


def family_of(arch: ArchSpec) -> str | None:
    """The Hugging Face family whose class computes exactly ``arch``; None if there is no such family."""
    if not DECODER.builds(arch):
        return None
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    alike = all(layer == first for layer in arch.layers)  # layers that share weights differ in ``shares``
    if attention is None or ffn is None or not alike or not ffn.gated or ffn.groups > 1 or first.convs:
        return None
    if arch.norm != "rmsnorm" or arch.norm_place != "pre" or arch.positions != "rope":
        return None
    even = arch.d_model % attention.heads == 0
    if attention.qk_norm:
        fits = attention.qkv_bias == attention.out_bias and attention.window is None and not ffn.bias
        return "qwen3" if fits else None
    if attention.window is None and attention.qkv_bias == attention.out_bias and even:
        return "llama"
    if not (attention.qkv_bias or attention.out_bias or ffn.bias):
        return "mistral"
    usual = attention.query_width == arch.d_model and not ffn.bias and attention.window is None
    return "qwen2" if attention.qkv_bias and not attention.out_bias and usual else None


_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def to_config(arch: ArchSpec) -> dict[str, object]:
    """``arch`` as the config of one of transformers' Llama-style classes.

    Raises:
        Unsupported: No family of transformers computes ``arch``.
    """
    family = family_of(arch)
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    if family is None or attention is None or ffn is None:
        raise Unsupported(
            f"{arch.name} is not a Llama-style model (one kind of layer with attention and a gated FFN, RMSNorm, "
            "rotary positions); save it with deploy.hf.save_pretrained, which adds chipwise's modelling file"
        )
    config: dict[str, object] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "intermediate_size": ffn.width,
        "num_hidden_layers": len(arch.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_size,
        "hidden_act": _ACTIVATION_NAMES[ffn.activation],
        "max_position_embeddings": arch.max_tokens,
        "rms_norm_eps": arch.norm_eps,
        "rope_theta": arch.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": arch.rope_theta},
        "tie_word_embeddings": arch.tie_embeddings,
    }
    if family in {"llama", "qwen3"}:
        config["attention_bias"] = attention.qkv_bias
    if family == "llama":
        config["mlp_bias"] = ffn.bias
    if family == "mistral":
        config["sliding_window"] = attention.window
    return config

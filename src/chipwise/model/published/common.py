"""Functions that the readers of several model families share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from chipwise.core.fields import build
from chipwise.errors import SpecError, short
from chipwise.model.arch.arch import check_heads
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.arch.trunk import Stem
from chipwise.model.published.fields import Fields

Windows = Sequence[int | None]


def attention(fields: Fields, *, head_size: int | None = None, **changes: object) -> Attention:
    """An attention block from fields named as in Llama's config. ``changes`` replace fields of the block."""
    d_model, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    size = fields.size_or_none("head_dim") or head_size
    if not size:
        check_heads(d_model, heads, field="num_attention_heads")
    found: dict[str, object] = {
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", heads),
        "head_size": size or d_model // heads,
    }
    return build(Attention, found | changes)


def biased(fields: Fields, *, head_size: int | None = None, default: bool = False, **changes: object) -> Attention:
    """An attention block. All its projections have biases if the config's ``attention_bias`` is true, else none."""
    bias = fields.take("attention_bias", bool, default)
    return attention(fields, head_size=head_size, qkv_bias=bias, out_bias=bias, **changes)


def equal_heads(heads: int, width: int, **changes: object) -> Attention:
    """Bidirectional multi-head attention. The width of each head is ``width / heads``."""
    found = {"heads": heads, "kv_heads": heads, "head_size": width // heads, "rope": False, "causal": False}
    return build(Attention, found | changes)


def gated(fields: Fields, *, bias: bool = False, activation: str = "hidden_act", default: str = "silu") -> FeedForward:
    """A gated feed-forward of width ``intermediate_size``."""
    return FeedForward(
        width=fields.size("intermediate_size"), activation=fields.activation(activation, default), bias=bias
    )


def ungated(
    fields: Fields, width: int, *, activation: str = "hidden_act", default: str = "gelu", bias: bool = True
) -> FeedForward:
    """A feed-forward of two matrices."""
    return FeedForward(width=width, activation=fields.activation(activation, default), gated=False, bias=bias)


def layers(
    fields: Fields, heads: Attention, ffn: FeedForwardBlock, windows: Windows | None = None
) -> tuple[Layer, ...]:
    """Layers of attention and ``ffn`` that differ only in their windows."""
    sizes = windows or (None,) * fields.depth()
    return tuple(Layer(attention=replace(heads, window=window), ffn=ffn) for window in sizes)


def decoder(fields: Fields, stack: Iterable[Layer], **changes: object) -> dict[str, object]:
    """The ArchSpec fields that Llama-like families have in common. ``changes`` replace fields."""
    found: dict[str, object] = {
        "vocab_size": fields.size("vocab_size"),
        "d_model": fields.size("hidden_size"),
        "layers": tuple(stack),
        "max_tokens": fields.size("max_position_embeddings", 2048),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, bool(changes.pop("tied", False))),
        "norm": "rmsnorm",
        "norm_eps": fields.take("rms_norm_eps", float, 1e-6),
    }
    if "rope_theta" not in changes:
        found["rope_theta"] = fields.theta()
    return found | changes


def with_layernorm(
    fields: Fields, stack: Iterable[Layer], *, tied: bool, vocabulary: int | None = None, **changes: object
) -> dict[str, object]:
    """The ArchSpec fields that decoders with LayerNorm have in common. ``changes`` replace fields."""
    return {
        "vocab_size": fields.size("vocab_size", vocabulary),
        "d_model": fields.size("hidden_size"),
        "layers": tuple(stack),
        "max_tokens": fields.size("max_position_embeddings", 2048),
        "tie_embeddings": fields.take("tie_word_embeddings", bool, tied),
        "norm": "layernorm",
        "norm_bias": True,
        **changes,
    }


def of_signals(stem: Stem, d_model: int, stack: tuple[Layer, ...], **changes: object) -> dict[str, object]:
    """The ArchSpec fields that models of images and sound have in common. ``changes`` replace fields."""
    found = {"vocab_size": 0, "stem": stem, "d_model": d_model, "layers": stack, "norm": "layernorm", "norm_bias": True}
    return found | changes


def layer_types(fields: Fields, default: Sequence[str], known: Iterable[str]) -> list[str]:
    """The kind of each layer: ``layer_types``, or ``default`` if the config has none."""
    types = fields.items("layer_types") or list(default)
    if len(types) != fields.depth():
        raise SpecError(f"has {len(types)} entries, but num_hidden_layers is {fields.depth()}", field="layer_types")
    for i, kind in enumerate(types):
        if kind not in known:
            raise SpecError(f"layers of type {short(kind)} are not supported", field=f"layer_types[{i}]")
    return types


def windows_of(fields: Fields, window: int | None, default: Sequence[str]) -> Windows:
    """The attention window of each layer; None for full attention."""
    types = layer_types(fields, default, {"full_attention", "sliding_attention"})
    return tuple(window if kind == "sliding_attention" else None for kind in types)

"""Random small decoders for the tests of this repository, and the size of a model's cache by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chipwise.core.dtypes import values_bytes
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import Activation, FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.arch.trunk import NormKind, NormPlace

Positions = Literal["rope", "learned", "none"]

ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "gelu_tanh", "silu")
POSITIONS: tuple[Positions, ...] = ("rope", "rope", "learned", "none")
NORMS: tuple[NormKind, ...] = ("rmsnorm", "layernorm")
PLACES: tuple[NormPlace, ...] = ("pre", "pre", "post", "both")
HEAD_SIZES: dict[Positions, tuple[bool, tuple[int, ...]]] = {
    "rope": (True, (16, 32, 48)),
    "learned": (False, (8, 16, 24)),
    "none": (False, (8, 16, 24)),
}


def check_each(check: Callable[[ArchSpec], None], archs: st.SearchStrategy[ArchSpec], *, examples: int) -> None:
    """Runs ``check`` on ``examples`` models of ``archs``, always the same ones; the smallest failing model is shown."""
    slow = [HealthCheck.too_slow]
    every = settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=slow, database=None)
    every(given(arch=archs)(lambda arch: check(arch)))()  # hypothesis allows no further arguments


@st.composite
def attentions(draw: st.DrawFn, positions: Positions = "rope") -> Attention:
    """Strategy for attention blocks of all kinds that work with ``positions``."""
    rope, sizes = HEAD_SIZES[positions]
    kv_heads = draw(st.sampled_from((1, 2, 3)))
    return Attention(
        heads=kv_heads * draw(st.sampled_from((1, 2, 3))),
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from(sizes)),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        rope=rope,
        window=draw(st.sampled_from((None, None, 3, 7))),
    )


@st.composite
def feed_forwards(draw: st.DrawFn) -> FeedForward:
    """Strategy for feed-forward blocks of all kinds."""
    return FeedForward(
        groups=draw(st.sampled_from((1, 1, 1, 2, 4))),
        width=draw(st.sampled_from((8, 20, 48))),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
    )


@st.composite
def arch_specs(draw: st.DrawFn, *, max_layers: int = 4) -> ArchSpec:
    """Strategy for decoders whose layers may differ, lack a block, or share weights, with norms in every place."""
    positions = draw(st.sampled_from(POSITIONS))
    layers: list[Layer] = []
    for i in range(draw(st.integers(1, max_layers))):
        owners = [number for number, layer in enumerate(layers) if layer.shares is None]
        if i and draw(st.integers(0, 3)) == 0:
            source = draw(st.sampled_from(owners))
            layers.append(dataclasses.replace(layers[source], shares=source))
            continue
        missing = draw(st.sampled_from(("nothing", "nothing", "attention", "ffn")))
        convs = st.sampled_from((0, 0, 2, 4))
        layers.append(
            Layer(
                attention=None if missing == "attention" else draw(attentions(positions)),
                ffn=None if missing == "ffn" else draw(feed_forwards()),
                attention_conv=0 if missing == "attention" else draw(convs),
                ffn_conv=0 if missing == "ffn" else draw(convs),
            )
        )
    norm, place = draw(st.sampled_from(NORMS)), draw(st.sampled_from(PLACES))
    return ArchSpec(
        name="drawn",
        stem=Tokens(vocab_size=draw(st.sampled_from((11, 40)))),
        head=LmHead(tied=draw(st.booleans())),
        d_model=draw(st.sampled_from((12, 16, 32))),
        layers=tuple(layers),
        max_tokens=48,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        norm_eps=draw(st.sampled_from((1e-6, 1e-5))),
        positions=positions,
        rope_theta=draw(st.sampled_from((10_000.0, 500_000.0))),
        norm_place=place,
        final_norm=place != "post",
    )


@st.composite
def llama_like_specs(draw: st.DrawFn) -> ArchSpec:
    """Strategy for models of identical layers with gated FFN, RMSNorm and rotary positions."""
    layer = Layer(
        attention=draw(attentions("rope")),
        ffn=FeedForward(
            width=draw(st.sampled_from((8, 20, 48))),
            activation=draw(st.sampled_from(ACTIVATIONS)),
            bias=draw(st.booleans()),
        ),
    )
    return ArchSpec(
        name="drawn",
        stem=Tokens(vocab_size=draw(st.sampled_from((11, 40)))),
        head=LmHead(tied=draw(st.booleans())),
        d_model=draw(st.sampled_from((12, 16, 48))),
        layers=(layer,) * draw(st.integers(1, 3)),
        max_tokens=48,
        rope_theta=draw(st.sampled_from((10_000.0, 500_000.0))),
    )


def kv_cache_bytes(
    arch: ArchSpec, tokens: int, *, batch: int = 1, cache: str = "fp32", state: str = "fp32", encoder_tokens: int = 0
) -> int:
    """Bytes kept between passes for ``tokens`` positions of each of ``batch`` sequences.

    Windowed layers keep their window, latent attention its latents, recurrences a state of fixed size, cross-attention
    the keys and values of ``encoder_tokens``. Layers that share weights have separate caches.
    """
    kept = held = 0
    for layer in arch.layers:
        held += layer.conv_state_values(arch.d_model)
        if layer.attention is not None:
            kept += layer.attention.cache_values(tokens)
            held += layer.attention.state_values()
        if layer.cross is not None:
            kept += 2 * layer.cross.kv_width * encoder_tokens
    return int(values_bytes(batch * kept, cache) + values_bytes(batch * held, state))

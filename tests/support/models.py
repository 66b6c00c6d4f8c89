"""More small models for the tests of this repository, and the size of a model's cache by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from chipwise.api.testing.specs import ACTIVATIONS, attentions
from chipwise.core.dtypes import values_bytes
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer


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

"""What a model is: refusals, and counts that a pencil gives."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from chipwise.api.testing.specs import toy_arch
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.weights import weight_shapes
from support.models import arch_specs, kv_cache_bytes


def test_parameters_of_a_small_model_by_hand() -> None:
    """Width 16, 20 tokens: table 320; norms 5 · 16.

    Layer 0: q 16·32, k and v 16·16 each, out 32·16 = 1536; gated FFN 3·16·24 = 1152.
    Layer 1: q 16·64, k and v 16·32 each, out 64·16 = 3072; plain FFN 2·16·40 = 1280.
    """
    assert toy_arch().parameters() == 320 + 80 + 1536 + 1152 + 3072 + 1280


def test_an_untied_head_and_learned_positions_are_further_tables() -> None:
    plain = toy_arch().parameters()
    assert toy_arch(head=LmHead(tied=False)).parameters() == plain + 20 * 16
    gpt = uniform(vocab_size=20, d_model=16, depth=1, heads=2, ffn_width=24)
    layer = dataclasses.replace(gpt.layers[0], attention=Attention(heads=2, kv_heads=2, head_size=8, rope=False))
    learned = dataclasses.replace(gpt, layers=(layer,), positions="learned", max_tokens=50)
    assert learned.parameters() == gpt.parameters() + 50 * 16


@given(arch_specs())
def test_parameters_are_the_sum_of_the_weights(arch: ArchSpec) -> None:
    assert arch.parameters() == sum(math.prod(shape) for shape in weight_shapes(arch).values())


def test_shared_layers_count_once_and_keep_caches_of_their_own() -> None:
    one = toy_arch().layers[0]
    shared = toy_arch(layers=(one, Layer(attention=one.attention, ffn=one.ffn, shares=0)))
    assert shared.parameters() == toy_arch(layers=(one,)).parameters()
    assert kv_cache_bytes(shared, 10) == 2 * kv_cache_bytes(toy_arch(layers=(one,)), 10)


def test_kv_cache_of_llama_3_8b_at_8192_tokens_is_a_gibibyte_in_fp16() -> None:
    """2 (k, v) · 32 layers · 8 heads · 128 · 8192 tokens · 2 bytes."""
    llama = uniform(vocab_size=128_256, d_model=4096, depth=32, heads=32, kv_heads=8, ffn_width=14_336)
    assert kv_cache_bytes(llama, 8192, cache="fp16") == 2**30


def test_a_window_bounds_the_cache() -> None:
    windowed = Layer(attention=Attention(heads=1, kv_heads=1, head_size=8, window=5), ffn=None)
    arch = toy_arch(layers=(windowed,))
    assert kv_cache_bytes(arch, 100) == kv_cache_bytes(arch, 5) == 2 * 8 * 5 * 4


def test_identity_ignores_the_name_and_nothing_else() -> None:
    assert toy_arch(name="other").digest == toy_arch().digest
    assert toy_arch(rope_theta=5e5).digest != toy_arch().digest
    assert Design(arch=toy_arch(), weights="int8").digest != Design(arch=toy_arch()).digest


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Attention(heads=3, kv_heads=2, head_size=8), "kv_heads"),
        (lambda: Attention(heads=2, kv_heads=2, head_size=7), "head_size"),
        (lambda: Attention(heads=0, kv_heads=1, head_size=8), "heads"),
        (lambda: Attention(heads=1, kv_heads=1, head_size=8, window=0), "window"),
        (lambda: FeedForward(width=0), "width"),
        (lambda: toy_arch(layers=()), "layers"),
        (lambda: toy_arch(norm_bias=True), "norm_bias"),
        (lambda: toy_arch(positions="none"), "layers[0].attention"),
        (lambda: toy_arch(layers=(Layer(attention=None, ffn=None, shares=0),)), "layers[0].shares"),
        (
            lambda: toy_arch(layers=(toy_arch().layers[0], dataclasses.replace(toy_arch().layers[1], shares=0))),
            "layers[1].shares",
        ),
    ],
)
def test_models_that_cannot_be_are_refused_by_field(make, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field

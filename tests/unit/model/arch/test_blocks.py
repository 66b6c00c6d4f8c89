"""Blocks of every kind: parameters by hand, laws of whole models, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.api.testing.specs import toy_arch
from chipwise.deploy.export import onnx
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Pooler, States, Tokens
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, GatedDelta, LatentAttention, Mamba2
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes
from support.models import arch_specs, kv_cache_bytes

LATENT = LatentAttention(heads=2, kv_rank=6, nope_size=4, rope_size=2, value_size=5, q_rank=3)
DELTA = GatedDelta(key_heads=2, value_heads=4, key_size=3, value_size=5, conv=4)
MAMBA = Mamba2(heads=4, head_size=3, state_size=5, groups=2, conv=4)
EXPERTS = MixtureOfExperts(
    experts=8, active=2, expert=FeedForward(width=7), shared=FeedForward(width=9), score_bias=True
)

mixers = st.sampled_from(
    (
        None,
        Attention(heads=4, kv_heads=2, head_size=8),
        Attention(heads=4, kv_heads=4, head_size=8, gate=True, sinks=True, window=16),
        LATENT,
        DELTA,
        MAMBA,
    )
)
feed_forwards = st.sampled_from((None, FeedForward(width=24), FeedForward(width=8, gated=False, bias=True), EXPERTS))
any_layers = st.lists(
    st.builds(Layer, attention=mixers, ffn=feed_forwards, parallel=st.booleans(), ffn_norm=st.booleans()),
    min_size=1,
    max_size=4,
)


@st.composite
def any_archs(draw: st.DrawFn) -> ArchSpec:
    """A model of any blocks."""
    return ArchSpec(
        stem=Tokens(vocab_size=draw(st.integers(1, 50)), token_types=draw(st.integers(0, 2))),
        d_model=16,
        layers=tuple(draw(any_layers)),
        norm_place=draw(st.sampled_from(("pre", "post", "both"))),
        final_norm=draw(st.booleans()),
        head=draw(st.sampled_from((LmHead(), LmHead(tied=False), Pooler(), States()))),
    )


def test_latent_attention_by_hand() -> None:
    """Width 16: queries 16·3, norm 3, 3·2·6; latent 16·8, norm 6; expanded 6·2·9; output 2·5·16."""
    assert LATENT.parameters(16) == 48 + 3 + 36 + 128 + 6 + 108 + 160
    plain = dataclasses.replace(LATENT, q_rank=None)
    assert plain.parameters(16) == 16 * 12 + 128 + 6 + 108 + 160
    # biases of the two small vectors and of the output
    assert dataclasses.replace(LATENT, bias=True).parameters(16) - LATENT.parameters(16) == 3 + 8 + 16
    assert LATENT.cache_values(10) == 80


def test_gated_delta_by_hand() -> None:
    """q and k 6 wide, v and gate 20, two scalars for 4 heads; convolution of 32 channels; decay, norm, output."""
    assert DELTA.parameters(16) == 16 * (6 + 6 + 20 + 20 + 8) + 32 * 4 + 8 + 5 + 20 * 16
    assert (DELTA.cache_values(1000), DELTA.state_values()) == (0, 4 * 3 * 5 + 32 * 3)


def test_mamba2_by_hand() -> None:
    """Inner width 12; B and C 2·5 each; 32 channels of convolution with bias; step sizes; three scalars a head."""
    assert MAMBA.in_width == 12 + 32 + 4
    assert MAMBA.parameters(16) == 16 * 48 + 32 * 5 + 12 + 12 + 12 * 16
    assert (MAMBA.cache_values(1000), MAMBA.state_values()) == (0, 12 * 5 + 32 * 3)
    assert dataclasses.replace(MAMBA, bias=True).parameters(16) - MAMBA.parameters(16) == 48 + 16


def test_experts_by_hand() -> None:
    """8 of 3·16·7, a router of 8·16 and 8 corrections, a shared one of 3·16·9; two of eight are met."""
    assert EXPERTS.parameters(16) == 8 * 336 + 128 + 8 + 432
    assert EXPERTS.active_parameters(16) == 2 * 336 + 128 + 8 + 432
    gated = dataclasses.replace(EXPERTS, shared_gate=True, router_bias=True, latent_size=4)
    # routed experts on a width of 4: 3·4·7, there and back 2·16·4
    assert gated.parameters(16) == 8 * 84 + 128 + 16 + 432 + 16 + 128


def test_attention_with_everything_by_hand() -> None:
    """Width 16, 4 heads of 8, 2 KV heads: q 512, k and v 256 each, output 512, gate 512."""
    plain = Attention(heads=4, kv_heads=2, head_size=8)
    assert plain.parameters(16) == 1536
    assert dataclasses.replace(plain, gate=True).parameters(16) == 1536 + 512
    assert dataclasses.replace(plain, sinks=True, relative_buckets=32).parameters(16) == 1536 + 4 * 33
    assert dataclasses.replace(plain, qk_norm=True).parameters(16) == 1536 + 16
    assert dataclasses.replace(plain, qk_norm=True, qk_norm_over="all").parameters(16) == 1536 + 32 + 16
    assert dataclasses.replace(plain, chunk=5).cache_values(100) == 2 * 16 * 5


@given(any_archs())
def test_parameters_are_the_sum_of_the_parts(arch: ArchSpec) -> None:
    alone = [dataclasses.replace(arch, layers=(layer,)) for layer in arch.layers]
    ends = arch.embedding_parameters() + arch.final_norm * arch.norm_parameters()
    assert arch.parameters() - ends == sum(one.parameters() - ends for one in alone)
    assert arch.active_parameters() - ends == sum(one.active_parameters() - ends for one in alone)


@given(any_archs(), any_layers)
def test_more_layers_never_have_fewer_parameters_or_smaller_caches(arch: ArchSpec, more: list[Layer]) -> None:
    longer = dataclasses.replace(arch, layers=(*arch.layers, *more))
    assert longer.parameters() >= arch.parameters()
    assert longer.active_parameters() >= arch.active_parameters()
    assert kv_cache_bytes(longer, 50) >= kv_cache_bytes(arch, 50)


@given(any_archs(), st.integers(0, 200), st.integers(0, 200))
def test_caches_grow_with_tokens_and_sequences_and_shrink_with_the_format(arch: ArchSpec, few: int, more: int) -> None:
    assert kv_cache_bytes(arch, few) <= kv_cache_bytes(arch, few + more)
    assert kv_cache_bytes(arch, few, batch=3) == 3 * kv_cache_bytes(arch, few)
    assert (
        kv_cache_bytes(arch, few, cache="fp8") <= kv_cache_bytes(arch, few, cache="bf16") <= kv_cache_bytes(arch, few)
    )


@given(any_archs())
def test_files_hold_any_blocks(arch: ArchSpec) -> None:
    assert io.from_data(json.loads(json.dumps(io.to_data(arch)))) == arch


@given(any_archs())
def test_only_experts_are_left_out_of_the_active(arch: ArchSpec) -> None:
    mixtures = [layer.ffn for layer in arch.layers if isinstance(layer.ffn, MixtureOfExperts)]
    assert arch.parameters() - arch.active_parameters() == sum(6 * 3 * 16 * 7 for _ in mixtures)


def test_fields_at_their_default_are_not_written_and_change_no_identity() -> None:
    """Models described before the field existed keep their identity."""
    data = io.to_data(toy_arch())
    assert "norm_place" not in data
    assert "gate" not in data["layers"][0]["attention"]
    assert toy_arch(norm_place="both").digest != toy_arch().digest


def test_a_file_with_a_wrong_field_in_a_block_names_it() -> None:
    data = io.to_data(toy_arch(layers=(Layer(attention=LATENT, ffn=EXPERTS),)))
    data["layers"][0]["attention"]["kv_rnk"] = 3
    with pytest.raises(SpecError, match=r"layers\[0\]\.attention\.kv_rnk: unknown field; did you mean 'kv_rank'"):
        io.from_data(data)


@given(arch_specs())
def test_plain_models_are_those_that_can_be_built(arch: ArchSpec) -> None:
    assert DECODER.builds(arch)
    DECODER.require(arch, work="built")


UNBUILT: list[tuple[dict[str, Any], str]] = [
    ({"layers": (Layer(attention=LATENT, ffn=None),)}, r"layers\[0\]\.attention is a LatentAttention block"),
    ({"layers": (Layer(attention=None, ffn=None), Layer(attention=MAMBA, ffn=None))}, r"layers\[1\].* Mamba2 block"),
    ({"layers": (Layer(attention=None, ffn=EXPERTS),)}, r"layers\[0\]\.ffn is a MixtureOfExperts block"),
    ({"layers": (Layer(attention=None, ffn=FeedForward(width=4, activation="relu2")),)}, "activation relu2"),
    (
        {"layers": (Layer(attention=Attention(heads=2, kv_heads=2, head_size=8, sinks=True), ffn=None),)},
        r"layers\[0\]\.attention\.sinks = True is not supported",
    ),
    ({"layers": (Layer(attention=Attention(heads=2, kv_heads=2, head_size=8, rope=False), ffn=None),)}, "rotary"),
    ({"layers": (dataclasses.replace(toy_arch().layers[0], parallel=True),)}, r"layers\[0\]\.parallel = True"),
    ({"norm_place": "post"}, "norm_place = 'post' with a final norm"),
    ({"head": Pooler()}, "head = 'pooler' is not supported"),
]


@pytest.mark.parametrize(("changes", "words"), UNBUILT)
def test_what_is_not_built_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    from chipwise.model.kinds.text.module import Transformer

    arch = toy_arch(**changes)
    assert not DECODER.builds(arch)
    design = Design(arch=arch)
    for refused in (
        lambda: Transformer(arch),
        lambda: onnx.build(design, {}),
        lambda: onnx.random_weights(arch, seed=0),
        lambda: lower(design, Workload(), Phase.DECODE),
        lambda: weight_shapes(arch),
    ):
        with pytest.raises(Unsupported, match=words):
            refused()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: dataclasses.replace(LATENT, kv_rank=0), "kv_rank"),
        (lambda: dataclasses.replace(LATENT, q_rank=0), "q_rank"),
        (lambda: dataclasses.replace(DELTA, key_heads=3), "key_heads"),
        (lambda: dataclasses.replace(MAMBA, groups=3), "groups"),
        (lambda: dataclasses.replace(EXPERTS, active=9), "active"),
        (lambda: dataclasses.replace(EXPERTS, shared=None, shared_gate=True), "shared_gate"),
        (lambda: dataclasses.replace(EXPERTS, latent_size=0), "latent_size"),
        (lambda: Attention(heads=1, kv_heads=1, head_size=8, window=4, chunk=4), "chunk"),
        (lambda: toy_arch(layers=(dataclasses.replace(toy_arch().layers[0], cross=LATENT),)), "cross"),
    ],
)
def test_blocks_that_cannot_be_are_refused_by_field(make: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field

"""Index rules of shared weights, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.attention.slicing import chosen_heads, chosen_values
from chipwise.model.blocks.cut import Cut, rows
from chipwise.model.walk.slicing import cuts, kept_layers
from chipwise.model.walk.weights import weight_shapes

WHOLE = uniform(
    vocab_size=40, d_model=32, depth=6, heads=8, kv_heads=4, head_size=4, ffn_width=24, tie_embeddings=False
)


def heads(query: int, kv: int) -> Attention:
    return Attention(heads=query, kv_heads=kv, head_size=32)


@pytest.mark.parametrize(
    ("small", "queries", "keys"),
    [
        (heads(8, 4), [0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3]),
        (heads(4, 4), [0, 2, 4, 6], [0, 1, 2, 3]),
        (heads(4, 2), [0, 1, 4, 5], [0, 2]),  # 0 and 1 shared KV head 0, 4 and 5 KV head 2
        (heads(6, 1), [0, 1, 2, 3, 4, 5], [0]),
    ],
)
def test_heads_of_eight_and_four(small: Attention, queries: list[int], keys: list[int]) -> None:
    assert chosen_heads(small, heads(8, 4)) == (queries, keys)


def test_kv_heads_that_do_not_divide_each_other_are_still_different_heads() -> None:
    for kv in range(1, 7):
        for group in range(1, 3):
            queries, keys = chosen_heads(heads(kv * group, kv), heads(12, 6))
            assert len(set(keys)) == kv
            assert len(set(queries)) == kv * group
            assert max(keys) < 6
            assert max(queries) < 12


def test_pairs_of_a_shorter_head_turn_at_the_speeds_of_those_of_the_longer() -> None:
    small, large = (Attention(heads=1, kv_heads=1, head_size=size) for size in (8, 16))
    speed = [10_000 ** (-2 * (i % 8) / 16) for i in range(16)]  # of the longer head's values
    chosen = chosen_values(small, large)
    assert [speed[i] for i in chosen] == pytest.approx([10_000 ** (-2 * (i % 4) / 8) for i in range(8)])
    plain = dataclasses.replace(small, rope=False)
    assert chosen_values(plain, large) == list(range(8))


def test_layers_are_the_first_the_last_and_evenly_between() -> None:
    assert [kept_layers(depth, 6) for depth in (1, 2, 3, 6)] == [[0], [0, 5], [0, 3, 5], [0, 1, 2, 3, 4, 5]]
    for whole in range(1, 12):
        for depth in range(1, whole + 1):
            kept = kept_layers(depth, whole)
            assert kept == sorted(set(kept))
            assert len(kept) == depth
    with pytest.raises(SpecError, match="3 layers are more than the larger model's 2"):
        kept_layers(3, 2)


def test_layers_that_share_weights_share_those_of_their_first() -> None:
    layer = Layer(attention=Attention(heads=2, kv_heads=1, head_size=4), ffn=FeedForward(width=8))
    paired = ArchSpec(
        stem=Tokens(vocab_size=40),
        head=LmHead(tied=True),
        d_model=16,
        layers=(layer, dataclasses.replace(layer, shares=0), layer, layer),
    )
    found = cuts(paired, WHOLE)
    assert found.keys() == weight_shapes(paired).keys()
    assert {name: cut.source for name, cut in found.items() if name.endswith("up.weight")} == {
        "layers.0.ffn.up.weight": "layers.0.ffn.up.weight",
        "layers.2.ffn.up.weight": "layers.3.ffn.up.weight",
        "layers.3.ffn.up.weight": "layers.5.ffn.up.weight",
    }
    assert found["layers.0.attention.q.weight"].axes == (slice(0, 8), slice(0, 16))
    assert found["embedding.weight"] == Cut("embedding.weight", (slice(0, 40), slice(0, 16)))


def test_an_untied_head_is_cut_from_the_table_where_the_whole_is_tied() -> None:
    whole = WHOLE.with_tied(True)
    assert cuts(WHOLE, whole)["head.weight"].source == "embedding.weight"
    assert "head.weight" not in cuts(whole, WHOLE)


def test_a_cut_takes_rows_and_columns() -> None:
    weights = {"w": np.arange(12).reshape(3, 4)}
    assert Cut("w", ([2, 0], slice(1, 3))).of(weights).tolist() == [[9, 10], [1, 2]]
    assert rows([3, 4, 5]) == slice(3, 6)
    assert rows([3, 5]) == [3, 5]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"d_model": 64}, "embedding.weight", "does not fit"),
        ({"stem": Tokens(vocab_size=80)}, "embedding.weight", "does not fit"),
        ({"norm": "layernorm"}, "norm", "differs"),
        ({"layers": WHOLE.layers * 2}, "layers", "more than the larger model's 6"),
        (
            {"layers": (Layer(attention=Attention(heads=9, kv_heads=1, head_size=4), ffn=None),)},
            "layers[0].attention.heads",
            "9 is more than the larger model's 8",
        ),
        ({"layers": (Layer(attention=None, ffn=FeedForward(width=25)),)}, "layers[0].ffn.width", "25 is more"),
        (
            {"layers": (Layer(attention=None, ffn=FeedForward(width=8, bias=True)),)},
            "layers.0.ffn.gate.bias",
            "the larger model has no layers.0.ffn.gate.bias",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes: dict, field: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        cuts(dataclasses.replace(WHOLE, **changes), WHOLE)
    assert caught.value.field == field


def test_a_gate_cannot_be_cut_from_none() -> None:
    plain = uniform(vocab_size=40, d_model=32, depth=6, heads=8, kv_heads=4, head_size=4, ffn_width=24, gated=False)
    with pytest.raises(SpecError, match="no gate"):
        cuts(WHOLE, plain)

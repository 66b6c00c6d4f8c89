"""Squares of patches and tables of biases by pencil, and as transformers' Swin and BEiT have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.spec import HIDDEN, Squares, bias_places, bias_rows, squares_of

HEADS = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)


def image(grid: int, *, token: bool = False) -> ImageStem:
    return ImageStem(image_size=grid, patch=1, prefix_tokens=int(token))


def test_squares_that_divide_a_grid() -> None:
    """Positions 0 1 / 4 5 of a 4 x 4 grid are the first square of 2; nothing is filled up."""
    squares = Squares(grid=4, side=2)
    assert squares.plain
    assert squares.order().tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert squares.hidden() is None


def test_squares_at_the_far_edges_are_filled_up() -> None:
    """3 x 3 positions in squares of 2: four squares of a 4 x 4 grid; 9 stands for no position."""
    squares = Squares(grid=3, side=2)
    assert (squares.number, squares.filled, squares.positions, squares.plain) == (4, 4, 16, False)
    assert squares.order().tolist() == [[0, 1, 3, 4], [2, 9, 5, 9], [6, 7, 9, 9], [8, 9, 9, 9]]


def test_moved_squares_hide_what_the_move_brought_together() -> None:
    """4 x 4 in squares of 2, moved by 1: the last square has the four corners, of which each sees itself alone."""
    squares = Squares(grid=4, side=2, shift=1)
    assert squares.order()[0].tolist() == [5, 6, 9, 10]
    assert squares.order()[3].tolist() == [15, 12, 3, 0]
    hidden = squares.hidden()
    assert hidden is not None
    assert not hidden[0].any()
    assert (hidden[3] == np.where(np.eye(4, dtype=bool), 0, np.float32(HIDDEN))).all()


@given(grid=st.integers(1, 9), side=st.integers(1, 9), moved=st.booleans())
def test_back_is_the_inverse_of_the_order(grid: int, side: int, moved: bool) -> None:
    squares = Squares(grid=grid, side=min(side, grid), shift=min(side, grid) // 2 if moved else 0)
    assert squares.order().ravel()[squares.back()].tolist() == list(range(grid**2))


def test_every_second_layer_is_moved_where_the_block_says_so() -> None:
    block = replace(HEADS, square=4, shift=True)
    assert [squares_of(block, image(8), i).shift for i in range(3)] == [0, 2, 0]  # type: ignore[union-attr]
    assert squares_of(replace(block, shift=False), image(8), 1) == Squares(grid=8, side=4)
    assert squares_of(HEADS, image(8), 1) is None


def test_biases_depend_on_the_distance_alone() -> None:
    """Of 7 x 7 positions 13 x 13 distances; two pairs share a row exactly if rows and columns are as far apart."""
    places = bias_places(image(7), None)
    assert len(np.unique(places)) == bias_rows(image(7), None) == 169
    y, x = np.divmod(np.arange(49), 7)
    far = (y[:, None] - y) * 100 + (x[:, None] - x)
    pairs = {(int(place), int(distance)) for place, distance in zip(places.ravel(), far.ravel(), strict=True)}
    assert len(pairs) == 169


def test_a_class_token_has_three_biases_more_as_in_beit() -> None:
    places = bias_places(image(2, token=True), None)
    assert bias_rows(image(2, token=True), None) == 9 + 3
    assert (places[0, 0], set(places[0, 1:]), set(places[1:, 0])) == (11, {9}, {10})
    assert (places[1:, 1:] == bias_places(image(2), None)).all()


def test_places_are_those_of_transformers() -> None:
    """Swin's index within a window, and BEiT's over an image with its class token."""
    transformers = pytest.importorskip("transformers")
    swin = transformers.SwinConfig(image_size=16, patch_size=4, embed_dim=8, depths=[1], num_heads=[1], window_size=4)
    found = transformers.SwinModel(swin).encoder.layers[0].blocks[0].attention.relative_position_bias
    index = next(value for name, value in found.named_buffers() if "index" in name)
    assert (index.reshape(16, 16).numpy() == bias_places(image(4), 4)).all()


def test_a_signal_has_distances_along_one_axis() -> None:
    signal = replace(image(5), axes=1)
    assert bias_rows(signal, None) == 9
    assert bias_places(signal, None)[0].tolist() == [4, 3, 2, 1, 0]


def classifier(*blocks: Attention, token: bool = False, **changes: object) -> ArchSpec:
    stem = ImageStem(image_size=28, patch=4, channels=1, prefix_tokens=int(token))
    ffn = FeedForward(width=16, gated=False, activation="gelu")
    head = Classes(count=10, pooling="first" if token else "mean")
    fields = {"max_tokens": stem.tokens, "head": head, "stem": stem, "positions": "none"}
    layers = tuple(Layer(attention=block, ffn=ffn) for block in blocks)
    return ArchSpec(d_model=16, layers=layers, norm="layernorm", **fields | changes)  # type: ignore[arg-type]


def test_parameters_of_biases_by_pencil() -> None:
    """Squares of 4: 7 x 7 distances; of 7 x 7 patches 13 x 13; two heads each."""
    without, biased = classifier(HEADS, HEADS), [replace(HEADS, square=4, relative_buckets=49)]
    biased.append(replace(HEADS, relative_buckets=169))
    assert classifier(*biased).parameters() - without.parameters() == 2 * (49 + 169)
    assert CLASSIFIER.builds(classifier(*biased))


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (classifier(replace(HEADS, relative_buckets=170)), "relative_buckets = 170 for 169 distances"),
        (classifier(replace(HEADS, relative_buckets=169), token=True), "relative_buckets = 169 for 172 distances"),
        (classifier(replace(HEADS, relative_buckets=169), positions="learned"), "beside learned positions"),
        (classifier(replace(HEADS, cosine=True)), "cosine = True"),
    ],
)
def test_what_is_not_built_is_named(arch: ArchSpec, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        CLASSIFIER.require(arch, work="built")

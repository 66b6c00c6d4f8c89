"""Tables of biases by distance, by pencil."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.distances.spec import bias_places, bias_rows
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.stem import ImageStem

HEADS = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)


def image(grid: int, *, token: bool = False) -> ImageStem:
    return ImageStem(image_size=grid, patch=1, prefix_tokens=int(token))


def test_biases_depend_on_the_distance_alone() -> None:
    """Of 7 x 7 positions 13 x 13 distances; two pairs share a row exactly if rows and columns are as far apart."""
    places = bias_places(image(7))
    assert len(np.unique(places)) == bias_rows(image(7)) == 169
    y, x = np.divmod(np.arange(49), 7)
    far = (y[:, None] - y) * 100 + (x[:, None] - x)
    pairs = {(int(place), int(distance)) for place, distance in zip(places.ravel(), far.ravel(), strict=True)}
    assert len(pairs) == 169


def test_a_class_token_has_three_biases_more_as_in_beit() -> None:
    places = bias_places(image(2, token=True))
    assert bias_rows(image(2, token=True)) == 9 + 3
    assert (places[0, 0], set(places[0, 1:]), set(places[1:, 0])) == (11, {9}, {10})
    assert (places[1:, 1:] == bias_places(image(2))).all()


def test_a_signal_has_distances_along_one_axis() -> None:
    signal = replace(image(5), axes=1)
    assert bias_rows(signal) == 9
    assert bias_places(signal)[0].tolist() == [4, 3, 2, 1, 0]


def classifier(*blocks: Attention, token: bool = False, **changes: object) -> ArchSpec:
    stem = ImageStem(image_size=28, patch=4, channels=1, prefix_tokens=int(token))
    ffn = FeedForward(width=16, gated=False, activation="gelu")
    head = Classes(count=10, pooling="first" if token else "mean")
    fields = {"max_tokens": stem.tokens, "head": head, "stem": stem, "positions": "none"}
    layers = tuple(Layer(attention=block, ffn=ffn) for block in blocks)
    return ArchSpec(d_model=16, layers=layers, norm="layernorm", **fields | changes)  # type: ignore[arg-type]


def test_parameters_of_biases_by_pencil() -> None:
    """Of 7 x 7 patches 13 x 13 distances, for two heads, in one of two layers."""
    without, biased = classifier(HEADS, HEADS), classifier(HEADS, replace(HEADS, relative_buckets=169))
    assert biased.parameters() - without.parameters() == 2 * 169
    assert CLASSIFIER.builds(biased)


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (classifier(replace(HEADS, relative_buckets=170)), "relative_buckets = 170 must be 169"),
        (classifier(replace(HEADS, relative_buckets=169), token=True), "relative_buckets = 169 must be 172"),
        (
            classifier(replace(HEADS, relative_buckets=169), positions="learned"),
            "biases are not supported together with learned positions",
        ),
        (classifier(replace(HEADS, cosine=True)), "cosine = True"),
        (classifier(replace(HEADS, square=7)), r"square = 7 \(attention within windows of patches\) is not supported"),
    ],
)
def test_what_is_not_built_is_named(arch: ArchSpec, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        CLASSIFIER.require(arch, work="built")

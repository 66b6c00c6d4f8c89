"""Image classifiers: all forms agree; patches and the class token by pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st

from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.patches.module import cut_patches
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.pool import PoolOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.lower import lower
from chipwise.model.walk.slicing import cuts
from support.archs import crossing_archs, image_archs, question_archs
from support.form_suite import FormSuite, QuestionSuite


class TestImageClassifiers(FormSuite):
    """Any small classifier."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return image_archs()


class TestQuestions(QuestionSuite):
    """Any small model that answers questions about images."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return question_archs()


class TestQuestionsByCrossAttention(QuestionSuite):
    """Any small model whose questions see the image by cross-attention."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return crossing_archs()


def classifier(*, pooling: str = "first") -> ArchSpec:
    """Two layers of width 16 on 28 x 28 images in patches of 7."""
    stem = ImageStem(image_size=28, patch=7, channels=1, prefix_tokens=int(pooling == "first"))
    attention = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False)
    return ArchSpec(
        stem=stem,
        head=Classes(count=10, pooling=pooling),
        d_model=16,
        layers=(Layer(attention=attention, ffn=FeedForward(width=24, gated=False, activation="gelu")),) * 2,
        max_tokens=stem.tokens,
        norm="layernorm",
        positions="learned",
    )


def test_patches_are_cut_row_by_row_as_a_convolution_takes_them() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 5, 4, stride=4)
    image = torch.randn(2, 3, 12, 12)
    expected = conv(image).flatten(2).transpose(1, 2)
    found = cut_patches(image, 4) @ conv.weight.flatten(1).T + conv.bias
    torch.testing.assert_close(found, expected)


def test_slices_of_a_signal_are_cut_as_a_convolution_over_time_takes_them() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv1d(3, 5, 4, stride=4)
    signal = torch.randn(2, 3, 12)
    found = cut_patches(signal, 4) @ conv.weight.flatten(1).T + conv.bias
    torch.testing.assert_close(found, conv(signal).transpose(1, 2))


def test_a_signal_by_pencil() -> None:
    """98 frames of 40 bands in slices of 7: 14 positions; one convolution to 8 channels leaves 49 frames."""
    plain = ImageStem(image_size=98, patch=7, channels=40, axes=1)
    assert (plain.shape, plain.values, plain.patches, plain.tokens) == ((40, 98), 280, 14, 15)
    assert plain.parameters(16) == 280 * 16 + 16 + 16  # the matrix, its bias, the class token
    stem = ImageStem(image_size=98, patch=14, channels=40, convs=(8,), axes=1)
    assert (stem.taps, stem.areas, stem.values, stem.patches) == (3, (98, 49), 7 * 8, 7)
    assert stem.parameters(16) == (3 * 40 + 1) * 8 + 56 * 16 + 16 + 16


def test_keyword_transformers_have_their_published_sizes() -> None:
    """KWT-1, 2 and 3 (Berg et al. 2021, table 1): 607k, 2,394k and 5,361k parameters, 12 layers, heads of 64."""
    for count, published in ((1, 607e3), (2, 2_394e3), (3, 5_361e3)):
        stem = ImageStem(image_size=98, patch=1, channels=40, axes=1)
        attention = Attention(heads=count, kv_heads=count, head_size=64, rope=False, causal=False, out_bias=True)
        ffn = FeedForward(width=256 * count, gated=False, activation="gelu", bias=True)
        arch = ArchSpec(
            stem=stem,
            head=Classes(count=35),
            d_model=64 * count,
            layers=(Layer(attention=attention, ffn=ffn),) * 12,
            max_tokens=stem.tokens,
            norm="layernorm",
            norm_bias=True,
            positions="learned",
        )
        assert arch.parameters() == pytest.approx(published, rel=0.005)


def test_a_signal_has_one_axis_and_no_squares() -> None:
    with pytest.raises(SpecError, match="a signal in time"):
        ImageStem(image_size=98, patch=7, axes=3)
    stem = ImageStem(image_size=16, patch=4, prefix_tokens=0, axes=1)
    square = Attention(heads=1, kv_heads=1, head_size=8, rope=False, causal=False, square=2)
    with pytest.raises(SpecError, match="needs image patches"):
        replace(
            classifier(),
            stem=stem,
            head=replace(classifier().head, pooling="mean"),
            max_tokens=4,
            layers=(Layer(attention=square, ffn=None),),
        )


def test_the_products_of_a_classifier_by_pencil() -> None:
    """17 positions; after the last attention only the class token: its output projection and feed-forward see one."""
    ops = [
        placed.op
        for placed in lower(Design(arch=classifier()), Workload(batch=3), Phase.PREFILL)
        if isinstance(placed.op, Matmul)
    ]
    rows = 3 * 17
    assert [(op.m, op.k, op.n) for op in ops] == [
        (3 * 16, 49, 16),
        *[(rows, 16, 48), (rows, 16, 16), (rows, 16, 24), (rows, 24, 16)],
        *[(rows, 16, 48), (3, 16, 16), (3, 16, 24), (3, 24, 16)],
        (3, 16, 10),
    ]


def test_pooling_keeps_all_positions_to_the_end() -> None:
    graph = lower(Design(arch=classifier(pooling="mean")), Workload(batch=1), Phase.PREFILL)
    assert [placed.op for placed in graph if isinstance(placed.op, PoolOp)] == [PoolOp(batch=1, positions=16, width=16)]
    assert [placed.op.m for placed in graph if placed.place == "layers.1.ffn.up"] == [16]


def test_biases_are_read_and_added_once() -> None:
    """16 positions, two heads: 2 x 16 x 16 values of four bytes, one addition a score."""
    arch = classifier(pooling="mean")
    block = replace(arch.layers[0].attention, relative_buckets=49)
    arch = replace(arch, positions="none", layers=(replace(arch.layers[0], attention=block),))
    with_biases, without = (
        next(
            placed.op.work()
            for placed in lower(Design(arch=a), Workload(batch=3), Phase.PREFILL)
            if placed.op.kind == "attention"
        )
        for a in (arch, replace(arch, layers=(classifier(pooling="mean").layers[0],)))
    )
    assert with_biases.read_bytes - without.read_bytes == 4 * 2 * 16 * 16
    assert with_biases.flops - without.flops == 3 * 2 * 16 * 16


def test_a_convolution_by_pencil() -> None:
    """28 pixels, stride 2: 14 x 14 outputs of 9 taps."""
    stem = ImageStem(image_size=28, patch=4, channels=1, convs=(6,))
    arch = replace(classifier(), stem=stem, max_tokens=stem.tokens)
    found = [
        placed.op
        for placed in lower(Design(arch=arch), Workload(batch=1), Phase.PREFILL)
        if isinstance(placed.op, ConvOp)
    ]
    assert [op.work().flops for op in found] == [14 * 14 * 6 * (2 * 9 + 1)]


def test_a_vit_b16_has_its_published_multiply_adds() -> None:
    """17.58 G a pass at 224 pixels (timm's benchmark table), where every position is computed to the end."""
    arch = replace(
        resolve("google/vit-base-patch16-224"),
        head=replace(resolve("google/vit-base-patch16-224").head, pooling="mean"),
    )
    graph = lower(Design(arch=arch), Workload(batch=1), Phase.PREFILL)
    products = sum(op.m * op.k * op.n for placed in graph if isinstance(op := placed.op, Matmul))
    attention = sum(
        2 * op.heads * op.head_size * op.query_tokens**2 for placed in graph if isinstance(op := placed.op, AttentionOp)
    )
    assert (products + attention) / 1e9 == pytest.approx(17.58, rel=0.002)


def test_the_only_pass_is_the_same_in_each_phase() -> None:
    design = Design(arch=classifier())
    prefill, decode = (lower(design, Workload(prompt_tokens=9, batch=2), phase) for phase in Phase)
    assert prefill == lower(design, Workload(batch=2), Phase.PREFILL)
    assert decode.ops == prefill.ops


def test_patches_of_other_sizes_share_no_weights() -> None:
    small, large = classifier(), classifier()
    stem = replace(large.stem, patch=14)
    with pytest.raises(SpecError, match="stem"):
        cuts(small, replace(large, stem=stem, max_tokens=stem.tokens))


def test_biases_of_other_distances_share_no_weights() -> None:
    """Of 4 x 4 patches there are 7 x 7 distances, and three more with a class token: none without biases."""
    arch = replace(classifier(pooling="mean"), positions="none")
    layer = arch.layers[0]
    biased = replace(arch, layers=(replace(layer, attention=replace(layer.attention, relative_buckets=49)),))
    with pytest.raises(SpecError, match="0 position biases cannot be cut from the larger model's 49"):
        cuts(replace(arch, layers=(layer,)), biased)
    assert cuts(biased, biased)


def test_what_is_not_built_says_so() -> None:
    with pytest.raises(Unsupported, match="head = 'none' is not supported for images"):
        CLASSIFIER.require(resolve("facebook/dinov2-small"), work="lowered")

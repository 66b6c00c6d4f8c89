"""Cross-attention to an image's tokens: as torch's own computes it, and only where there is a question."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.cross.module import CrossAttention
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from support.archs import crossed

BLOCK = Attention(heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
STEM = ImageStem(image_size=16, patch=4, prefix_tokens=0, bias=False)
ARCH = ArchSpec(
    stem=QuestionStem(image=STEM, question=Question(words=9, tokens=5), projector=Projector(widths=(16, 16))),
    head=Classes(count=3, pooling="last"),
    d_model=16,
    layers=(Layer(attention=BLOCK, ffn=FeedForward(width=24, gated=False, activation="gelu", bias=True)),) * 2,
    max_tokens=16 + 5,
    norm="layernorm",
    norm_bias=True,
    positions="learned",
)


@pytest.mark.parametrize("read", [1, 11, 300])
def test_words_see_an_image_as_in_torchs_own_attention(read: int) -> None:
    torch.manual_seed(0)
    ours, theirs = CrossAttention(BLOCK, 16), torch.nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.k.bias, ours.v.bias]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    words, image = torch.randn(3, 5, 16), torch.randn(3, read, 16)
    torch.testing.assert_close(ours(words, image), theirs(words, image, image, need_weights=False)[0])


def test_the_words_pass_the_layers_alone() -> None:
    """16 tokens of the image and 5 words: 21 positions in the table, 21 or 5 in the layers."""
    cross = crossed(ARCH)
    assert (ARCH.crosses, ARCH.request_tokens, ARCH.max_tokens) == (False, 21, 21)
    assert (cross.crosses, cross.request_tokens, cross.max_tokens) == (True, 5, 21)
    each = 4 * 16 * 16 + 4 * 16 + 2 * 16  # four matrices with biases, a norm
    assert cross.parameters() - ARCH.parameters() == 2 * each + 2 * 16  # and the norm of the image
    assert crossed(ARCH, (False, True)).parameters() - ARCH.parameters() == each + 2 * 16


def test_what_is_not_built_is_named() -> None:
    assert CLASSIFIER.builds(crossed(ARCH))
    for change, words in (
        ({"causal": True}, r"layers\[0\]\.cross\.causal = True"),
        ({"kv_heads": 1}, r"layers\[0\]\.cross\.kv_heads must equal heads"),
        ({"square": 2}, r"layers\[0\]\.cross\.square = 2 .* is not supported"),
        ({"relative_buckets": 7}, r"layers\[0\]\.cross\.relative_buckets = 7"),
    ):
        arch = replace(ARCH, layers=(replace(ARCH.layers[0], cross=replace(BLOCK, **change)),))
        with pytest.raises(Unsupported, match=words):
            CLASSIFIER.require(arch, work="built")


def test_only_a_question_sees_an_image() -> None:
    plain = {"stem": replace(STEM, bias=True), "head": replace(ARCH.head, pooling="mean"), "max_tokens": 16}
    with pytest.raises(SpecError, match="or an image that the model answers questions about"):
        crossed(replace(ARCH, **plain))

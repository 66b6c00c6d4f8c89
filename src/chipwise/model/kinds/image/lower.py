"""Operators of models that read images, before and after the layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.lowering import Named, Operators, Pass, Place
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.kinds.question.question import QuestionStem, image_of, question_of
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp


def last_attention(arch: ArchSpec) -> Place | None:
    """The last attention, after which only the position that the head reads is needed; None if the head reads all."""
    found = [i for i, layer in enumerate(arch.layers) if layer.attention is not None]
    return (found[-1], "attention") if found and arch.head.pooling in ("first", "last") else None


def _stem(at: Pass) -> None:
    arch, stem, asked = at.arch, image_of(at.arch.stem), question_of(at.arch.stem)
    at.tokens = arch.request_tokens
    at.put("stem", lower_patches(arch, stem, weights=at.head, batch=at.batch))
    if asked is not None:
        projector = lower_projector(asked.projector, asked.image, d_model=arch.d_model, weights=at.head, batch=at.batch)
        at.put("projector", projector)
        at.put("question", _question(arch, asked, batch=at.batch))
    if arch.head.pooling in ("first", "last") and at.last is None:
        at.put("stem", [("first", lower_cut(width=arch.d_model, rows=at.rows, kept=at.batch))])
        at.tokens = 1


def _head(at: Pass) -> None:
    at.put_norm("norm")
    at.put("head", lower_classes(at.arch, weights=at.head, batch=at.batch, positions=at.tokens))


OPERATORS = Operators(stem=_stem, head=_head, last=last_attention)


def _question(arch: ArchSpec, asked: QuestionStem, *, batch: int) -> Named:
    """Operators that embed the words, append them to the image's tokens, and add positions.

    With cross-attention, the words are not appended, and the image's tokens are normed.
    """
    d, rows = arch.d_model, batch * arch.request_tokens
    yield "words", EmbeddingOp(tokens=batch * asked.question.tokens, width=d, rows=asked.question.words)
    if arch.crosses:
        yield "image", Elementwise(function="add", elements=batch * arch.image_tokens * d, inputs=2)
        yield "image_norm", lower_norm(arch, rows=batch * arch.image_tokens, skip=False)
    else:
        yield "behind", Elementwise(function="pad", elements=rows * d)
    yield "positions", Elementwise(function="add", elements=rows * d, inputs=2)

"""Operators of models that read images, before and after the layers."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.lowering import Operators, Pass, Place
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.kinds.question.question import QuestionStem, image_of, question_of
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import Placed


def last_attention(arch: ArchSpec) -> Place | None:
    """The last attention block if one position is pooled: after it, only that position is needed."""
    found = [i for i, layer in enumerate(arch.layers) if layer.attention is not None]
    return (found[-1], "attention") if found and arch.head.pooling in ("first", "last") else None


def _stem(at: Pass) -> None:
    arch, stem, asked = at.arch, image_of(at.arch.stem), question_of(at.arch.stem)
    at.tokens = arch.request_tokens
    at.put("stem", lower_patches(arch, stem, weights=at.head, batch=at.batch))
    if asked is not None:
        at.placed += _question(arch, asked, weights=at.head, batch=at.batch)
    if arch.head.pooling in ("first", "last") and at.last is None:
        at.put("stem", [("first", lower_cut(width=arch.d_model, rows=at.rows, kept=at.batch))])
        at.tokens = 1


def _head(at: Pass) -> None:
    at.put_norm("norm")
    at.put("head", lower_classes(at.arch, weights=at.head, batch=at.batch, positions=at.tokens))


OPERATORS = Operators(stem=_stem, head=_head, last=last_attention)


def _question(arch: ArchSpec, asked: QuestionStem, *, weights: str, batch: int) -> Iterator[Placed]:
    """Adds the projector, the words' embedding, their concatenation (or the image's norm), and positions."""
    d, rows = arch.d_model, batch * arch.request_tokens
    for name, op in lower_projector(asked.projector, asked.image, d_model=d, weights=weights, batch=batch):
        yield Placed(place=f"projector.{name}", op=op)
    table = EmbeddingOp(tokens=batch * asked.question.tokens, width=d, rows=asked.question.words)
    yield Placed(place="question.words", op=table)
    if arch.crosses:
        read = Elementwise(function="add", elements=batch * arch.image_tokens * d, inputs=2)
        yield Placed(place="question.image", op=read)
        norm = lower_norm(arch, rows=batch * arch.image_tokens, skip=False)
        yield Placed(place="question.image_norm", op=norm)
    else:
        yield Placed(place="question.behind", op=Elementwise(function="pad", elements=rows * d))
    yield Placed(place="question.positions", op=Elementwise(function="add", elements=rows * d, inputs=2))

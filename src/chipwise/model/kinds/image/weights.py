"""Weights of image classifiers and pretrained image encoders outside their layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes, Pooler
from chipwise.model.blocks.weights import Shapes, feed_forward, linear, norm
from chipwise.model.kinds.image.gives import gives
from chipwise.model.kinds.image.stem import CONV_EDGE, ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import image_of, question_of


def stem(arch: ArchSpec) -> Shapes:
    """Weights before the layers: convolutions, patch matrix, class token, projector, question words, positions."""
    d = arch.d_model
    given, asked = image_of(arch.stem), question_of(arch.stem)
    for i, (into, out) in enumerate(given.conv_shapes()):
        yield f"stem.convs.{i}.weight", (out, into, *([CONV_EDGE] * given.axes))
        yield f"stem.convs.{i}.bias", (out,)
    yield from linear("stem.projection", d, given.values, bias=given.bias)
    if given.prefix_tokens:
        yield "stem.prefix.weight", (given.prefix_tokens, d)
    if asked is not None:
        for i, (into, out) in enumerate(asked.projector.shapes(d, given.axes)):
            yield from linear(f"projector.matrices.{i}", out, into, bias=asked.projector.bias)
        yield "words.weight", (asked.question.words, d)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, d)
    if arch.crosses:
        yield from norm(arch, "image_norm")


def classes(arch: ArchSpec) -> Shapes:
    """Weights of the last norm and of the matrix over classes."""
    yield from norm(arch, "norm")
    yield from linear("head", arch.outputs, arch.d_model, bias=True)


def encoder_stem(arch: ArchSpec) -> Shapes:
    """The patch matrix of a pretrained encoder, class token, registers and positions."""
    d = arch.d_model
    given = arch.stem_as(ImageStem)
    yield from linear("stem.projection", d, given.values, bias=given.bias)
    if given.prefix_tokens:
        yield "stem.prefix.weight", (given.prefix_tokens, d)
    if given.mask_token:
        yield "stem.mask.weight", (d,)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, d)
    if arch.embedding_norm:
        yield from norm(arch, "embedding_norm")


def encoder_head(arch: ArchSpec) -> Shapes:
    """Scale factors of blocks, the last norm, and the weights of pooling, classes or projector."""
    d = arch.d_model
    given = arch.stem_as(ImageStem)
    for i, layer in enumerate(arch.layers):
        if layer.scale:
            yield from ((f"layers.{i}.{name}_scale.weight", (d,)) for name, _ in layer.named_blocks())
    if arch.final_norm:
        yield from norm(arch, "norm")
    if arch.head.pooling == "attention":
        yield "pool.query.weight", (1, d)
        for name in ("q", "k", "v", "out"):
            yield from linear(f"pool.{name}", d, d, bias=True)
        yield from norm(arch, "pool.norm")
        if (ffn := arch.layers[-1].ffn) is not None:
            yield from feed_forward(ffn, d, "pool.ffn")
    if isinstance(arch.head, Pooler):
        yield from linear("pooler", d, d, bias=True)
    if isinstance(arch.head, Classes):
        yield from linear("head", arch.outputs, d, bias=True)
    if arch.head.projection:
        yield from linear("projection", arch.head.projection, d, bias=False)
    if gives(arch) == "tokens":
        projector = arch.head_as(Projector)
        if projector.norm != "none":
            width = projector.norm_width(d, given.axes)
            yield "projector.norm.weight", (width,)
            if projector.norm == "layernorm":
                yield "projector.norm.bias", (width,)
        for i, (into, out) in enumerate(projector.shapes(d, given.axes)):
            yield from linear(f"projector.matrices.{i}", out, into, bias=projector.bias)
        for i in range(projector.vectors):
            yield f"projector.vectors.{i}.weight", (projector.widths[-1],)

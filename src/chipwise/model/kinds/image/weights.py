"""Names and shapes of an image classifier's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, linear, norm
from chipwise.model.kinds.image.stem import CONV_EDGE
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
    """Weights of the final norm and of the matrix over classes."""
    yield from norm(arch, "norm")
    yield from linear("head", arch.outputs, arch.d_model, bias=True)

"""Input and output of an image classifier as ONNX nodes: images in, logits out."""

from __future__ import annotations

from onnx import TensorProto

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.nodes import Nodes, Stream
from chipwise.model.blocks.norm.onnx import add_norm
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.kinds.image.distances.onnx import add_attend
from chipwise.model.kinds.image.patches.onnx import add_classes, add_first, add_patches
from chipwise.model.kinds.question.projector.onnx import add_projector
from chipwise.model.kinds.question.question import QuestionStem, image_of, question_of


def _stem(s: Stream) -> None:
    arch = s.arch
    asked = question_of(arch.stem)
    s.x, s.positions = add_patches(s.graph, arch, image_of(arch.stem)), arch.request_tokens
    if asked is not None:
        s.x, s.read = _with_question(s.graph, arch, asked, s.x)
    if arch.head.pooling in ("first", "last") and s.last is None:
        s.x, s.positions = add_first(s.graph, s.x, last=arch.head.pooling == "last"), 1


def attend(s: Stream, layer: int, block: Attention, x: str, key: str, last: bool) -> str:
    """Attention over all positions of an image, before the output projection."""
    return add_attend(s.graph, block, image_of(s.arch.stem), layer=layer, x=x, d_model=s.arch.d_model)


def _drop(s: Stream, y: str, place: str) -> str:
    """Keeps only the position that the head reads."""
    last = s.arch.head.pooling == "last"
    s.x, s.positions = add_first(s.graph, s.x, last=last), 1
    return add_first(s.graph, y, last=last)


def _head(s: Stream) -> None:
    add_classes(s.graph, s.arch, s.norm("norm"), positions=s.positions)


def _metadata(s: Stream) -> dict[str, object]:
    """The metadata entries: the image's shape, (C, Y, X) or (C, X), and the number of words per question if any."""
    image, asked = image_of(s.arch.stem), question_of(s.arch.stem)
    words = {} if asked is None else {"question": asked.question.tokens}
    return {"encodes": "classes", "image": list(image.shape), "kv": [], **words}


NODES = Nodes(stem=_stem, attend=attend, head=_head, drop=_drop, metadata=_metadata, logits="last")


def _with_question(graph: GraphBuilder, arch: ArchSpec, asked: QuestionStem, x: str) -> tuple[str, str]:
    """Residual stream and cross-attention input of a model that answers questions, with positions added.

    The stream is the image's tokens followed by the embedded input ``words`` (B, Q); with cross-attention, it is only
    the words, and the image's normed tokens are returned separately.
    """
    d, tokens, question = arch.d_model, arch.image_tokens, asked.question
    x = add_projector(graph, asked.projector, asked.image, x, d_model=d)
    last = f"projector.matrices.{len(asked.projector.widths) - 1}.bias"
    given = graph.input("words", TensorProto.INT64, ["batch", question.tokens])
    rows = graph.tensor("words.weight", question.words, d)
    words = graph.node("Gather", [rows, given], "question", axis=0)

    def table() -> AnyArray:
        found = graph.weight("positions.weight", (arch.max_tokens, d)).copy()
        found[:tokens] += graph.weight(last, (d,))
        return found

    if arch.crosses:
        of_image = graph.store("positions.image", lambda: table()[:tokens])
        of_words = graph.store("positions.words", lambda: table()[tokens:])
        placed = graph.node("Add", [x, of_image], "question.image")
        read, _ = add_norm(graph, arch, "image_norm", "image_norm", placed, None)
        return graph.node("Add", [words, of_words], "question.out"), read
    both = graph.node("Concat", [x, words], "question.behind", axis=1)
    return graph.node("Add", [both, graph.store("positions.weight", table)], "question.out"), x

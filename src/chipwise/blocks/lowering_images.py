"""An image classifier as an OpGraph: the same nodes, in the same order, as the graph of ``deploy/onnx_vision.py``."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.blocks.embedding.lower import lower_cut
from chipwise.blocks.ffn.lower import lower as lower_ffn
from chipwise.blocks.norm.lower import lower as lower_norm
from chipwise.blocks.patches.lower import lower_classes, lower_patches
from chipwise.blocks.projector.lower import lower_projector
from chipwise.ops import AttentionOp, Elementwise, EmbeddingOp, Matmul, Op, OpGraph, Phase, Placed
from chipwise.spec import ArchSpec, Attention, Design, ImageStem
from chipwise.spec.question import Question
from chipwise.spec.vision import require_classifier


def last_attention(arch: ArchSpec) -> int | None:
    """The last layer in which positions look at others; None without one. After it only the class token is needed."""
    found = [i for i, layer in enumerate(arch.layers) if layer.attention is not None]
    return found[-1] if found else None


def lower_classifier(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` images, its only one, whatever it is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    stem = require_classifier(arch, work="lowered as the graph that is exported")
    head, kept = formats.head, arch.max_tokens
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in lower_patches(arch, stem, weights=head, batch=batch)]
    if arch.question is not None:
        placed += _question(arch, arch.question, stem, weights=head, batch=batch)
    one = arch.pooling in ("first", "last")
    cut = last_attention(arch) if one else None
    if one and cut is None:
        placed.append(Placed(place="stem.first", op=lower_cut(width=arch.d_model, rows=batch * kept, kept=batch)))
        kept = 1
    skip = False
    for i, (layer, weights) in enumerate(zip(arch.layers, formats.layers, strict=True)):
        if layer.attention is not None:
            place = f"layers.{i}.attention"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=batch * kept, skip=skip)))
            positions = arch.max_tokens
            for name, op in attention_ops(layer.attention, positions, arch.d_model, weights, batch=batch, cut=i == cut):
                placed.append(Placed(place=f"{place}.{name}", op=op))
            kept, skip = 1 if i == cut else kept, True
        if layer.ffn is not None:
            place = f"layers.{i}.ffn"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=batch * kept, skip=skip)))
            for name, op in lower_ffn(layer.ffn, d_model=arch.d_model, weights=weights, rows=batch * kept):
                placed.append(Placed(place=f"{place}.{name}", op=op))
            skip = True
    placed.append(Placed(place="norm", op=lower_norm(arch, rows=batch * kept, skip=skip)))
    ends = lower_classes(arch, weights=head, batch=batch, positions=kept)
    placed += [Placed(place=f"head.{name}", op=op) for name, op in ends]
    return OpGraph(phase=phase, ops=tuple(placed))


def _question(arch: ArchSpec, question: Question, stem: ImageStem, *, weights: str, batch: int) -> Iterator[Placed]:
    """The projector, the question's words, both one behind the other, and the positions of all."""
    d, rows = arch.d_model, batch * arch.max_tokens
    if arch.projector is not None:
        for name, op in lower_projector(arch.projector, stem, d_model=d, weights=weights, batch=batch):
            yield Placed(place=f"projector.{name}", op=op)
    table = EmbeddingOp(tokens=batch * question.tokens, width=d, rows=question.words)
    yield Placed(place="question.words", op=table)
    yield Placed(place="question.behind", op=Elementwise(function="pad", elements=rows * d))
    yield Placed(place="question.positions", op=Elementwise(function="add", elements=rows * d, inputs=2))


def attention_ops(
    block: Attention, positions: int, d_model: int, weights: str, *, batch: int, cut: bool = False
) -> list[tuple[str, Op]]:
    """The operators of attention over the ``positions`` of an image, or within its squares, without the norm.

    ``cut`` keeps one position of each image before the output projection.
    """
    rows, width = batch * positions, block.query_width
    sequences, tokens = batch, positions
    ops: list[tuple[str, Op]] = []
    if block.square is not None:
        tokens = block.square**2
        sequences = rows // tokens
        ops.append(("squares", Elementwise(function="transpose", elements=rows * d_model)))
    ops.append(("qkv", Matmul(m=rows, k=d_model, n=3 * width, weights=weights, bias=block.qkv_bias)))
    ops.append(("split", Elementwise(function="split", elements=3 * rows * width)))
    attend = AttentionOp(
        batch=sequences,
        query_tokens=tokens,
        past_tokens=0,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
    )
    ops.append(("attend", attend))
    if block.square is not None:
        ops.append(("rows", Elementwise(function="transpose", elements=rows * width)))
    if cut:
        ops.append(("first_stream", lower_cut(width=d_model, rows=rows, kept=batch)))
        ops.append(("first", lower_cut(width=width, rows=rows, kept=batch)))
        rows = batch
    ops.append(("out", Matmul(m=rows, k=width, n=d_model, weights=weights, bias=block.out_bias)))
    return ops

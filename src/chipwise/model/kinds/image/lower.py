"""An image classifier as an OpGraph: the same nodes, in the same order, as the graph of
``model/kinds/image/graph.py``."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.cross.lower import lower_cross
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.blocks.ffn.lower import lower as lower_ffn
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.patches.lower import lower_classes, lower_patches
from chipwise.model.kinds.image.pyramid import stage_archs
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.lower import attention_ops
from chipwise.model.kinds.question.projector.lower import lower_projector
from chipwise.model.kinds.question.question import Question
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.graph import OpGraph, Placed
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase


def last_attention(arch: ArchSpec) -> int | None:
    """The last layer in which positions look at others; None without one. After it only the pooled one is needed."""
    found = [i for i, layer in enumerate(arch.layers) if layer.attention is not None]
    return found[-1] if found else None


def lower_classifier(design: Design, *, batch: int, phase: Phase = Phase.PREFILL) -> OpGraph:
    """The operators of a pass over ``batch`` images, its only one, whatever it is called.

    Raises:
        Unsupported: A model that is not built, so that there is no graph to mirror.
    """
    arch, formats = design.arch, design.formats
    CLASSIFIER.require(arch, work="lowered as the graph that is exported")
    stem: ImageStem = arch.stem
    head, kept = formats.head, arch.request_tokens
    placed = [Placed(place=f"stem.{name}", op=op) for name, op in lower_patches(arch, stem, weights=head, batch=batch)]
    if arch.question is not None:
        placed += _question(arch, arch.question, stem, weights=head, batch=batch)
    if stem.stages:
        placed += _stages(arch, stem, weights=head, batch=batch)
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
            ops = attention_ops(
                layer.attention,
                stem,
                arch.d_model,
                weights,
                batch=batch,
                layer=i,
                positions=arch.request_tokens,
                cut=i == cut,
            )
            placed += [Placed(place=f"{place}.{name}", op=op) for name, op in ops]
            kept, skip = 1 if i == cut else kept, True
        if layer.cross is not None:
            place = f"layers.{i}.cross"
            placed.append(Placed(place=f"{place}.norm", op=lower_norm(arch, rows=batch * kept, skip=skip)))
            for name, op in lower_cross(
                layer.cross,
                d_model=arch.d_model,
                weights=weights,
                batch=batch,
                query_tokens=kept,
                read_tokens=arch.image_tokens,
            ):
                placed.append(Placed(place=f"{place}.{name}", op=op))
            skip = True
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


def _stages(arch: ArchSpec, stem: ImageStem, *, weights: str, batch: int) -> Iterator[Placed]:
    """The norm of the patches, and the stages before the model's own layers, each with its merge."""
    inner = stage_archs(arch, stem)
    yield Placed(place="stem.norm", op=lower_norm(inner[0], rows=batch * inner[0].max_tokens, skip=False))
    for i, (stage, blocks) in enumerate(zip(inner, stem.stages, strict=True)):
        place, rows, d = f"stages.{i}", batch * stage.max_tokens, stage.d_model
        skip = False
        assert stage.stem is not None
        for j in range(blocks.depth):
            yield Placed(place=f"{place}.layers.{j}.attention.norm", op=lower_norm(stage, rows=rows, skip=skip))
            for name, op in attention_ops(blocks.attention, stage.stem, d, weights, batch=batch, layer=j):
                yield Placed(place=f"{place}.layers.{j}.attention.{name}", op=op)
            yield Placed(place=f"{place}.layers.{j}.ffn.norm", op=lower_norm(stage, rows=rows, skip=True))
            for name, op in lower_ffn(blocks.ffn, d_model=d, weights=weights, rows=rows):
                yield Placed(place=f"{place}.layers.{j}.ffn.{name}", op=op)
            skip = True
        following = inner[i + 1].d_model if i + 1 < len(inner) else arch.d_model
        yield Placed(place=f"{place}.sum", op=Elementwise(function="add", elements=rows * d, inputs=2))
        yield Placed(place=f"{place}.four", op=Elementwise(function="transpose", elements=rows * d))
        norm = NormOp(rows=rows // 4, width=4 * d, norm=arch.norm, bias=arch.norm_bias)
        yield Placed(place=f"{place}.norm", op=norm)
        yield Placed(place=f"{place}.merge", op=Matmul(m=rows // 4, k=4 * d, n=following, weights=weights))


def _question(arch: ArchSpec, question: Question, stem: ImageStem, *, weights: str, batch: int) -> Iterator[Placed]:
    """The projector, the question's words, both one behind the other, or the image normed, and positions of all."""
    d, rows = arch.d_model, batch * arch.request_tokens
    if arch.projector is not None:
        for name, op in lower_projector(arch.projector, stem, d_model=d, weights=weights, batch=batch):
            yield Placed(place=f"projector.{name}", op=op)
    table = EmbeddingOp(tokens=batch * question.tokens, width=d, rows=question.words)
    yield Placed(place="question.words", op=table)
    if arch.crosses:
        read = Elementwise(function="add", elements=batch * arch.image_tokens * d, inputs=2)
        yield Placed(place="question.image", op=read)
        norm = lower_norm(arch, rows=batch * arch.image_tokens, skip=False)
        yield Placed(place="question.image_norm", op=norm)
    else:
        yield Placed(place="question.behind", op=Elementwise(function="pad", elements=rows * d))
    yield Placed(place="question.positions", op=Elementwise(function="add", elements=rows * d, inputs=2))

"""A whole design as an OpGraph, with the same nodes in the same order as the exported ONNX graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import matrix_of
from chipwise.model.blocks.lowering import Pass, lower_layers
from chipwise.model.kinds.table import form_of
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload


def lower(design: Design, workload: Workload, phase: Phase, *, logits: Literal["last", "all"] = "last") -> OpGraph:
    """The operators of one pass of ``design`` in ``phase``. ``logits`` selects the positions of a decoder's output.

    Raises:
        Unsupported: chipwise cannot export the model, so there is no graph to reproduce.
    """
    form = form_of(design.arch)
    form = form if form.operators is not None else DECODER  # DECODER's checks then raise an error
    form.require(design.arch, work="lowered to the operators of an exported graph", lowered=True)
    kind, formats, arch = form.operators, design.formats, form.as_run(design.arch)
    assert kind is not None  # the decoder has operators
    at = Pass(arch=arch, head=formats.head, layers=formats.layers, fused=design.fused, batch=workload.batch)
    if arch.causal:
        at.tokens, at.past = workload.query_tokens(phase), workload.past_tokens(phase)
        at.last_only = logits == "last"
    at.last = kind.last(arch) if at.last_only else None
    kind.stem(at)
    lower_layers(at, kind)
    kind.head(at)
    graph = OpGraph(phase=phase, ops=tuple(at.placed))
    return _with_matrices(graph, design) if design.formats.matrices else graph


def _with_matrices(graph: OpGraph, design: Design) -> OpGraph:
    """A copy of ``graph`` in which each matrix has its own format if the design states one for it."""
    own, ops = dict(design.formats.matrices), []
    for item in graph.ops:
        weights = own.get(matrix_of(f"{item.place}.weight") or "")
        if weights is not None and isinstance(item.op, Matmul):
            ops.append(replace(item, op=replace(item.op, weights=weights)))
        else:
            ops.append(item)
    return replace(graph, ops=tuple(ops))

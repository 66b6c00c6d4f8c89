"""A whole design with its weights as ONNX nodes; ``walk/lower.py`` lists the same operators."""

from __future__ import annotations

from importlib import import_module

from chipwise.model.arch.design import Design
from chipwise.model.blocks.nodes import Logits, Nodes, Output, Stream, Weights, add_layers
from chipwise.model.blocks.onnx_graph import GraphBuilder
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.table import form_of


def graph_of(
    design: Design,
    weights: Weights,
    *,
    logits: Logits = "last",
    output: Output = "mean",
    padded: bool = False,
    packing: Packing = NEAREST,
) -> tuple[GraphBuilder, Logits, dict[str, object]]:
    """The graph of ``design``, the positions that the graph's output covers, and the model kind's metadata entries.

    The arguments are those of :func:`chipwise.deploy.export.onnx.export`.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: chipwise cannot export this model, or not in this weight format.
    """
    form = form_of(design.arch)
    form.require(design.arch, work="exported to ONNX")
    kind, arch = nodes_of(form), design.arch
    graph = GraphBuilder(weights=weights, format_of=design.format_of, packing=packing)
    s = Stream(graph=graph, arch=arch, fused=design.fused, logits=logits, output=output, padded=padded)
    if form.operators is not None and (kind.logits is not None or logits == "last"):
        s.last = form.operators.last(arch)
    kind.stem(s)
    add_layers(s, kind)
    kind.head(s)
    return graph, kind.logits or logits, kind.metadata(s)


def second_graphs(design: Design, weights: Weights) -> dict[str, GraphBuilder]:
    """Maps metadata keys to additional graphs, which run once after the last pass."""
    return dict(nodes_of(form_of(design.arch)).after(design.arch, weights))


def nodes_of(form: Form) -> Nodes:
    """The ONNX nodes of a kind of model.

    The Python module that defines the nodes is imported only here, because it needs the package onnx.
    """
    found: Nodes = import_module(f"chipwise.model.kinds.{form.package}.graph").NODES
    return found

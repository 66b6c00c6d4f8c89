"""Writes a design and its weights as one ONNX file, which is both measured and shipped.

The graph is built node by node for ONNX Runtime's fused kernels; ``model/walk/lower.py`` mirrors it. The file's
metadata contains the architecture, so a runtime needs no other file.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper
from onnx.external_data_helper import set_external_data

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.dtypes import dtype_of
from chipwise.core.files import storage, write_atomic
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.io import to_data
from chipwise.model.blocks.nodes import Logits, Output
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.walk.graph import graph_of, second_graphs
from chipwise.model.walk.weights import weight_shapes

SCHEMA = "chipwise.onnx/1"
OPSET, IR_VERSION = 18, 9
LARGEST_BYTES = 2**31 - 1 - 2**20  # largest weights in one file: protobuf's limit, less 1 MiB for the graph
EXTERNAL_FROM_BYTES = 1024  # smaller tensors stay in the graph, because shape inference needs some of them
ALIGNMENT = 4096  # bytes; tensors in the external file start at multiples of a page, because runtimes map the file


def export(
    design: Design,
    weights: Mapping[str, AnyArray],
    path: str | Path,
    *,
    logits: Logits = "last",
    output: Output = "mean",
    padded: bool = False,
    packing: Packing = NEAREST,
    external_data: bool = False,
) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) to ``path``, atomically.

    ``logits`` selects the positions of a decoder's output: the last of each sequence (to generate) or all (to score).
    ``output`` and ``padded`` select an encoder's output and whether it accepts padding, see
    ``model/kinds/encoder/graph.py``. ``packing`` determines how matrices are rounded. With ``external_data``, weights
    that exceed one file go to a second file, ``path`` plus ``.data``; both are needed to load the model.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The design's weight format or one of its blocks cannot be written as ONNX, or its weights exceed
            one file.
        StorageError: The disk is full or refuses the file.
    """
    if not external_data:
        check_size(design)
    target = Path(path)
    model = build(design, weights, logits=logits, output=output, padded=padded, packing=packing)
    if stored_bytes(design) > LARGEST_BYTES:
        _move_weights(model, target.with_name(f"{target.name}.data"))
    write_atomic(target, model.SerializeToString())
    return target


def _move_weights(model: ModelProto, path: Path) -> None:
    """Moves the large tensors of ``model`` to the file ``path``, which must stay next to the graph's file."""
    with storage(path), path.open("wb") as stream:
        for tensor in model.graph.initializer:
            values = tensor.raw_data
            if len(values) >= EXTERNAL_FROM_BYTES:
                stream.write(bytes(-stream.tell() % ALIGNMENT))
                set_external_data(tensor, path.name, offset=stream.tell(), length=len(values))
                stream.write(values)
                tensor.ClearField("raw_data")


def build(
    design: Design,
    weights: Mapping[str, AnyArray],
    *,
    logits: Logits = "last",
    output: Output = "mean",
    padded: bool = False,
    packing: Packing = NEAREST,
) -> ModelProto:
    """The ONNX model of ``design``. See :func:`export`."""
    graph, positions, facts = graph_of(design, weights, logits=logits, output=output, padded=padded, packing=packing)
    others = {name: _model(each, design, {}) for name, each in second_graphs(design, weights).items()}
    texts = {name: base64.b64encode(each.SerializeToString()).decode("ascii") for name, each in others.items()}
    return _model(graph, design, metadata(design, positions) | facts, **texts)


def check_size(design: Design) -> None:
    """Refuses a design whose weights do not fit into one ONNX file, before creating them.

    Raises:
        Unsupported: The weights do not fit.
    """
    size = stored_bytes(design)
    if size > LARGEST_BYTES:
        raise Unsupported(
            f"{design.arch.name} takes {units.show(size, 'bytes')} in {design.weights}, and an ONNX file holds at most "
            f"{units.show(LARGEST_BYTES, 'bytes')}; choose int8 or int4 weights, another runtime, or a smaller model"
        )


def stored_bytes(design: Design) -> float:
    """Bytes of all weights as the file stores them, without the scales of narrow formats."""
    shapes = weight_shapes(design.arch)
    total = sum(math.prod(shape) * dtype_of(design.format_of(name)).size_bytes for name, shape in shapes.items())
    if design.arch.tie_embeddings and design.formats.head != "fp32":  # the head is stored separately
        total += design.arch.vocab_size * design.arch.d_model * dtype_of(design.formats.head).size_bytes
    return total


def _model(graph: GraphBuilder, design: Design, facts: Mapping[str, object], **others: str) -> ModelProto:
    """An ONNX model of the graph's nodes, with ``facts`` in its metadata, and the additional graphs ``others``."""
    model = helper.make_model(
        helper.make_graph(graph.nodes, design.arch.name, graph.inputs, graph.outputs, list(graph.stored.values())),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=IR_VERSION,
        producer_name="chipwise",
    )
    helper.set_model_props(model, {"chipwise": json.dumps(facts), **others})
    return model


def metadata(design: Design, logits: Logits) -> dict[str, object]:
    """The metadata of the file, as JSON values.

    ``kv`` has an entry for each layer with a KV cache: the layer's index, number of KV heads and head size. If there
    are convolutions, ``conv`` has an entry for each: the name of its state, its number of channels, and how many past
    inputs the state stores.
    """
    arch = design.arch
    taps = {
        f"{i}.{name}": getattr(layer, name)
        for i, layer in enumerate(arch.layers)
        for name in ("attention_conv", "ffn_conv")
    }
    conv = [[state, arch.d_model, count - 1] for state, count in taps.items() if count]
    kv = [[i, a.kv_heads, a.head_size] for i, layer in enumerate(arch.layers) if (a := layer.attention) is not None]
    return {
        "schema": SCHEMA,
        "design": design.digest,
        "name": arch.name,
        "weights": design.weights,
        **({"fused": design.fused} if design.fused != USUALLY_FUSED else {}),
        "logits": logits,
        "vocab_size": arch.vocab_size,
        "max_tokens": arch.max_tokens,
        "kv": kv,
        **({"conv": conv} if conv else {}),
        "positions": arch.positions,
        "arch": to_data(arch),
    }


def random_weights(arch: ArchSpec, *, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights for measurements that do not depend on training.

    They are normal with standard deviation 1/√fan-in, or 0.1 for short convolutions. Norm weights are 1, biases 0.

    Raises:
        Unsupported: chipwise cannot build the model.
    """
    shapes, generator = weight_shapes(arch), np.random.default_rng(seed)
    starts: dict[str, int] = {}
    for i, name in enumerate(shapes):
        starts.setdefault(_layer_of(name), i)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name in sorted(shapes, key=lambda name: (starts[_layer_of(name)], not name.endswith("_conv.weight"))):
        if len(shape := shapes[name]) >= 2:
            scale = 0.1 if name.endswith("_conv.weight") else 1 / math.sqrt(math.prod(shape[1:]))
            weights[name] = generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        else:
            weights[name] = np.full(shape, float(name.endswith("weight")), np.float32)
    return weights


def _layer_of(name: str) -> str:
    """The part of a weight's name that identifies its layer; outside layers, the whole name."""
    return ".".join(name.split(".")[:2]) if name.startswith("layers.") else name

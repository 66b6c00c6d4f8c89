"""A design with its weights as one ONNX file: the graph that is measured is the graph that is shipped.

Built node by node for ONNX Runtime's fused kernels; ``model/walk/lower.py`` mirrors it. The file describes itself: its
metadata holds the architecture, so a runtime needs nothing else.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import set_external_data

from chipwise.core import units
from chipwise.core.dtypes import dtype_of
from chipwise.core.files import storage, write_atomic
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.io import to_data
from chipwise.model.blocks.attention.onnx import add_attention, add_output
from chipwise.model.blocks.conv.onnx import add_conv
from chipwise.model.blocks.embedding.onnx import add_embedding, add_head
from chipwise.model.blocks.ffn.onnx import add_ffn
from chipwise.model.blocks.norm.onnx import add_head_norm, add_norm
from chipwise.model.blocks.onnx_graph import MICROSOFT, GraphBuilder
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.graph import decoder_graph, denoiser_graph, denoiser_metadata
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.kinds.encoder.graph import Output, encoder_graph, encoder_metadata
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.graph import classifier_graph, classifier_metadata
from chipwise.model.kinds.image.graph_published import image_encoder_graph, image_encoder_metadata
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.graph import ranker_graph, ranker_metadata
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.graph import transcriber_graph, transcriber_metadata
from chipwise.model.kinds.sound.graph_published import listener_graph, listener_metadata
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.table import form_of
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.kinds.text.lower import last_mixing
from chipwise.model.walk.weights import weight_shapes

Logits = Literal["last", "all"]
SCHEMA = "chipwise.onnx/1"
OPSET, IR_VERSION = 18, 9
LARGEST_BYTES = 2**31 - 1 - 2**20  # of the weights in one file: protobuf's limit, less a mebibyte for the graph
EXTERNAL_FROM_BYTES = 1024  # smaller tensors stay in the graph, where shapes are inferred from some of them
ALIGNMENT = 4096  # of tensors in the file beside: runtimes map it page by page


def export(
    design: Design,
    weights: Mapping[str, npt.NDArray[Any]],
    path: str | Path,
    *,
    logits: Logits = "last",
    output: Output = "mean",
    padded: bool = False,
    external_data: bool = False,
) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) to ``path``, atomically.

    ``logits`` selects the positions of a decoder's output: the last of each sequence (to generate) or all (to score);
    ``output`` and ``padded`` what an encoder gives and takes, see ``onnx_encoder.py``. With ``external_data``, weights
    that exceed one file go to a second one beside it, ``path`` plus ``.data``; a copy of the model needs both.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: The design's weight format or one of its blocks has no graph, or its weights exceed one file.
        StorageError: The disk refused.
    """
    if not external_data:
        check_size(design)
    target = Path(path)
    model = build(design, weights, logits=logits, output=output, padded=padded)
    if stored_bytes(design) > LARGEST_BYTES:
        _move_weights(model, target.with_name(f"{target.name}.data"))
    write_atomic(target, model.SerializeToString())
    return target


def _move_weights(model: ModelProto, path: Path) -> None:
    """Moves the large tensors of ``model`` to the file ``path``, which must stay beside the graph's."""
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
    weights: Mapping[str, npt.NDArray[Any]],
    *,
    logits: Logits = "last",
    output: Output = "mean",
    padded: bool = False,
) -> ModelProto:
    """The ONNX model of ``design``. See :func:`export`."""
    form = form_of(design.arch)
    if form is ENCODER:
        graph = encoder_graph(design, weights, output=output, padded=padded)
        return _model(graph, design, metadata(design, "all") | encoder_metadata(output, padded=padded))
    if form in _ONE_PASS:
        nodes, told, positions = _ONE_PASS[form]
        facts = metadata(design, positions) | told(design.arch)
        return _model(nodes(design, weights), design, facts, **_beside(design, weights))
    DECODER.require(design.arch, work="exported to ONNX")
    return _model(_decoder(design, weights, logits), design, metadata(design, logits))


def _beside(design: Design, weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
    """A second graph in the file: that which makes an image of a denoiser's latents."""
    decoder = decoder_graph(design.arch, weights) if design.arch.denoiser is not None else None
    if decoder is None:
        return {}
    inner = _model(decoder, design, {}).SerializeToString()
    return {"decoder": base64.b64encode(inner).decode("ascii")}


Nodes = Callable[[Design, Mapping[str, npt.NDArray[Any]]], GraphBuilder]
# Nodes, metadata, and which positions the output is of, for forms whose requests are answered in passes of one kind.
_ONE_PASS: Mapping[Form, tuple[Nodes, Callable[[ArchSpec], dict[str, Any]], Logits]] = {
    CLASSIFIER: (classifier_graph, classifier_metadata, "last"),
    IMAGE_ENCODER: (image_encoder_graph, image_encoder_metadata, "all"),
    DENOISER: (denoiser_graph, denoiser_metadata, "last"),
    TRANSCRIBER: (transcriber_graph, transcriber_metadata, "all"),
    LISTENER: (listener_graph, listener_metadata, "all"),
    RANKER: (ranker_graph, ranker_metadata, "last"),
}


def check_size(design: Design) -> None:
    """Refuses a design whose weights do not fit into one ONNX file, before any of them is made.

    Raises:
        Unsupported: They do not.
    """
    size = stored_bytes(design)
    if size > LARGEST_BYTES:
        raise Unsupported(
            f"{design.arch.name} takes {units.show(size, 'bytes')} in {design.weights}, and an ONNX file holds at most "
            f"{units.show(LARGEST_BYTES, 'bytes')}; choose int8 or int4 weights, another runtime, or a smaller model"
        )


def stored_bytes(design: Design) -> float:
    """Bytes of all weights as the file stores them, scales of narrow formats left out."""
    shapes = weight_shapes(design.arch)
    total = sum(math.prod(shape) * dtype_of(design.format_of(name)).size_bytes for name, shape in shapes.items())
    if design.arch.tie_embeddings and design.formats.head != "fp32":  # the head is a copy of the token table
        total += design.arch.vocab_size * design.arch.d_model * dtype_of(design.formats.head).size_bytes
    return total


def _decoder(design: Design, weights: Mapping[str, npt.NDArray[Any]], logits: Logits) -> GraphBuilder:
    """The nodes of a decoder."""
    arch = design.arch
    graph = GraphBuilder(weights=weights, format_of=design.format_of)
    x = add_embedding(graph, arch)
    cut_block = last_mixing(arch) if logits == "last" else None
    if any(layer.attention is not None for layer in arch.layers):
        graph.input("seqlens_k", TensorProto.INT32, ["batch"])
        graph.input("total_sequence_length", TensorProto.INT32, [])

    def cut(name: str) -> str:
        last = graph.store("last", lambda: np.array([-1], np.int64))
        return graph.node("Gather", [name, last], f"{name}.last", axis=1)

    def head_norm(place: str, key: str, x: str, *, heads: int, head_size: int) -> str:
        return add_head_norm(graph, place, key, x, heads=heads, head_size=head_size, eps=arch.norm_eps)

    def conv(layer: int, owner: str, block: str, x: str, taps: int) -> str:
        if not taps:
            return x
        name, place = f"{block}_conv", f"layers.{layer}.{block}.conv"
        state, key = f"{layer}.{name}", f"{owner}.{name}"
        return add_conv(graph, state=state, place=place, key=key, x=x, taps=taps, d_model=arch.d_model)

    if logits == "last" and cut_block is None:
        x = cut(x)
    skip: str | None = None
    for i, layer in enumerate(arch.layers):
        owner = f"layers.{i if layer.shares is None else layer.shares}"
        if layer.attention is not None:
            normed, x = add_norm(graph, arch, f"layers.{i}.attention_norm", f"{owner}.attention_norm", x, skip)
            normed = conv(i, owner, "attention", normed, layer.attention_conv)
            heads = add_attention(
                graph,
                layer.attention,
                layer=i,
                key=f"{owner}.attention",
                x=normed,
                d_model=arch.d_model,
                max_tokens=arch.max_tokens,
                rope_theta=arch.rope_theta,
                head_norm=head_norm,
            )
            if (i, "attention") == cut_block:
                x, heads = cut(x), cut(heads)
            skip = add_output(graph, layer.attention, layer=i, key=f"{owner}.attention", x=heads, d_model=arch.d_model)
        if layer.ffn is not None:
            normed, x = add_norm(graph, arch, f"layers.{i}.ffn_norm", f"{owner}.ffn_norm", x, skip)
            normed = conv(i, owner, "ffn", normed, layer.ffn_conv)
            if (i, "ffn") == cut_block:
                x, normed = cut(x), cut(normed)
            skip = add_ffn(graph, layer.ffn, layer=i, key=f"{owner}.ffn", x=normed, d_model=arch.d_model)
    normed, _ = add_norm(graph, arch, "norm", "norm", x, skip)
    add_head(graph, arch, normed)
    graph.output("logits", ["batch", 1 if logits == "last" else "tokens", arch.vocab_size])
    return graph


def _model(graph: GraphBuilder, design: Design, facts: Mapping[str, Any], **others: str) -> ModelProto:
    """The nodes as a model with ``facts`` in its metadata, and ``others`` beside them."""
    model = helper.make_model(
        helper.make_graph(graph.nodes, design.arch.name, graph.inputs, graph.outputs, list(graph.stored.values())),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=IR_VERSION,
        producer_name="chipwise",
    )
    helper.set_model_props(model, {"chipwise": json.dumps(facts), **others})
    return model


def metadata(design: Design, logits: Logits) -> dict[str, Any]:
    """The metadata of the file, as JSON can hold it.

    ``kv`` lists each cached layer's number, heads and size; ``conv``, where there are any, each convolution's state,
    channels and kept inputs.
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
    """Weights like a fresh model's (normal with 1/√fan-in), for measuring what training does not change.

    Raises:
        Unsupported: A model that is not built.
    """
    if form_of(arch) is not DECODER:
        return _random_in_one_pass(arch, seed=seed)
    DECODER.require(arch, work="given random weights")
    generator = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {}

    def matrix(name: str, rows: int, columns: int, scale: float | None = None) -> None:
        values = generator.standard_normal((rows, columns), dtype=np.float32)
        weights[f"{name}.weight"] = values * np.float32(scale or 1 / math.sqrt(columns))

    def vector(name: str, size: int, value: float) -> None:
        weights[name] = np.full(size, value, np.float32)

    def norm(name: str) -> None:
        vector(f"{name}.weight", arch.d_model, 1.0)
        if arch.norm_bias:
            vector(f"{name}.bias", arch.d_model, 0.0)

    def linear(name: str, out: int, into: int, *, bias: bool) -> None:
        matrix(name, out, into)
        if bias:
            vector(f"{name}.bias", out, 0.0)

    d = arch.d_model
    matrix("embedding", arch.vocab_size, d)
    if arch.positions == "learned":
        matrix("positions", arch.max_tokens, d)
    for i, layer in arch.owned_layers():
        for name in ("attention_conv", "ffn_conv"):
            if taps := getattr(layer, name):
                values = generator.standard_normal((d, 1, taps), dtype=np.float32) * np.float32(0.1)
                weights[f"layers.{i}.{name}.weight"] = values
        if (attention := layer.attention) is not None:
            place = f"layers.{i}.attention"
            norm(f"{place}_norm")
            linear(f"{place}.q", attention.query_width, d, bias=attention.qkv_bias)
            linear(f"{place}.k", attention.kv_width, d, bias=attention.qkv_bias)
            linear(f"{place}.v", attention.kv_width, d, bias=attention.qkv_bias)
            linear(f"{place}.out", d, attention.query_width, bias=attention.out_bias)
            if attention.qk_norm:
                vector(f"{place}.q_norm.weight", attention.head_size, 1.0)
                vector(f"{place}.k_norm.weight", attention.head_size, 1.0)
        if (ffn := layer.ffn) is not None:
            place = f"layers.{i}.ffn"
            norm(f"{place}_norm")
            for name in ("gate", "up") if ffn.gated else ("up",):
                linear(f"{place}.{name}", ffn.width, d, bias=ffn.bias)
            linear(f"{place}.down", d, ffn.width, bias=ffn.bias)
    norm("norm")
    if not arch.tie_embeddings:
        matrix("head", arch.vocab_size, d)
    return weights


def _random_in_one_pass(arch: ArchSpec, *, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in weight_shapes(arch).items():
        if len(shape) >= 2:
            values = generator.standard_normal(shape, dtype=np.float32)
            weights[name] = values * np.float32(1 / math.sqrt(math.prod(shape[1:])))
        else:
            weights[name] = np.full(shape, float(name.endswith("weight")), np.float32)
    return weights

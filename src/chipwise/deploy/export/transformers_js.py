"""Folders for transformers.js: the Hugging Face config and tokenizer, and an ONNX file with Hugging Face's names.

chipwise's own file takes the lengths of sequences and writes to the cache in place. transformers.js passes a mask over
all tokens instead, and expects that each step returns a longer cache. Here a few added nodes compute the lengths from
the mask; the other nodes are unchanged.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from chipwise.core.files import read_mapping, write_json
from chipwise.deploy.export.sources import Source, write_hf, write_onnx
from chipwise.deploy.runtimes import TEXT_PAST
from chipwise.errors import Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing

DTYPES = {"fp32": ("fp32", ""), "int8": ("int8", "_int8"), "int4": ("q4", "_q4")}
"""For each weight format, its name in transformers.js and the suffix that transformers.js adds to the file's name."""
_NAMES = {"tokens": "input_ids", "positions": "position_ids"}


def write_transformers_js(
    source: Source, design: Design, folder: Path, packing: Packing = NEAREST
) -> tuple[list[str], list[str]]:
    """Writes the folder; returns names of its files and remarks on the tokenizer.

    Raises:
        Unsupported: The layers have different weight formats (transformers.js allows only one), or the weights do not
            fit into one file.
    """
    import onnx
    from onnx import TensorProto, helper

    kinds = set(design.formats.layers)
    if len(kinds) > 1:
        raise Unsupported(f"transformers.js allows one format for all layers, not {design.weights}; use --to onnx")
    dtype, suffix = DTYPES[kinds.pop()]
    with tempfile.TemporaryDirectory() as scratch:
        write_onnx(source, design, Path(scratch), packing)
        if (Path(scratch) / "model.onnx.data").exists():
            raise Unsupported(f"{design.arch.name} exceeds one ONNX file; choose int8 or int4 weights, or --to onnx")
        model = onnx.load(str(Path(scratch) / "model.onnx"))
    files, notes = write_hf(source, design, folder)
    (folder / "model.safetensors").unlink()
    graph = model.graph
    lengths = ("seqlens_k", "total_sequence_length")
    for item in [item for item in graph.input if item.name in lengths]:
        graph.input.remove(item)
    names = {item.name: _renamed(item.name) for item in graph.input}
    for item in graph.input:
        item.name = names[item.name]
        if item.name.startswith(TEXT_PAST):
            item.type.tensor_type.shape.dim[2].dim_param = "past"
    outputs = sorted(graph.output, key=lambda item: item.name != "logits")  # logits come first, as in other files
    del graph.output[:]
    graph.output.extend(outputs)
    for item in graph.output[1:]:
        item.type.tensor_type.shape.dim[2].dim_param = "total"
    for item in (*graph.input, *graph.output):
        item.type.tensor_type.shape.dim[
            0
        ].dim_param = "batch_size"  # the axis name by which transformers.js makes an empty cache
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total"])
    graph.input.insert(1, mask)
    for name, shape in (("js.one", [1]), ("js.second", [])):
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, shape, [1]))
    steps = [
        helper.make_node("ReduceSum", ["attention_mask", "js.one"], ["js.counts"], keepdims=0),
        helper.make_node("Sub", ["js.counts", "js.one"], ["js.last"]),
        helper.make_node("Cast", ["js.last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["js.shape"]),
        helper.make_node("Gather", ["js.shape", "js.second"], ["js.total"]),
        helper.make_node("Cast", ["js.total"], ["total_sequence_length"], to=TensorProto.INT32),
    ]
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*steps, *nodes])
    del model.metadata_props[:]  # metadata with chipwise's own names
    (folder / "onnx").mkdir()
    name = f"onnx/model{suffix}.onnx"
    onnx.save(model, str(folder / name))
    config = read_mapping(folder / "config.json")
    write_json(folder / "config.json", {**config, "transformers.js_config": {"dtype": dtype}})
    return [name, *(each for each in files if each != "model.safetensors")], notes


def _renamed(name: str) -> str:
    return _NAMES.get(name, TEXT_PAST + name.removeprefix("past.") if name.startswith("past.") else name)

"""Writes a design and its weights as a GGUF file, for llama.cpp and programs based on it.

GGUF stores the name of an architecture, not a graph: a design is written as ``llama`` if its layers are equal, as
``qwen3`` if, in addition, queries and keys are normed, and as ``deci`` if layers differ in heads or width or lack
attention. Other designs are refused. Shared weights are written once per layer, because a tensor in GGUF has one name.

References:
    The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What each architecture computes:
    llama.cpp's ``src/models/llama.cpp``, ``deci.cpp``, ``qwen2.cpp`` and ``qwen3.cpp``; ``llama_model_rope_type``.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.core.extras import optional_imports
from chipwise.core.files import storage
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer, gguf_tokenizer
from chipwise.errors import MissingExtra, SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import to_data
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.quantize import NEAREST, Packed, Packing
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.walk.weights import weight_shapes

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

SCHEMA = "chipwise.gguf/1"
METADATA = "chipwise"  # metadata key of chipwise's description of the design
TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
PACKED = {"int8": "q8_0", "int4": "int4"}  # integer formats, by their names in quantisers
BLOCK = 32  # values of a row that share one scale in Q8_0 and Q4_0
PROJECTIONS = {
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.out": "attn_output",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}
NORMS = {
    "attention_norm": "attn_norm",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
}
ELSEWHERE = "write ONNX or a Hugging Face folder instead"
INTERLEAVED = {"llama": True, "deci": True, "qwen2": False, "qwen3": False}
"""Architectures that can be read, and whether each rotates pairs of neighbouring values instead of halves of a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One GGUF layer: optional attention and a feed-forward, each with the index of the layer that has its weights."""

    attention: tuple[Attention, int] | None
    ffn: tuple[FeedForward, int]


def layout(arch: ArchSpec) -> tuple[Block, ...]:
    """The GGUF layers that are equivalent to ``arch``, in order.

    An attention and the feed-forward after it form one GGUF layer, even if they are in different layers of ``arch``.

    Raises:
        Unsupported: The design has a feature that neither ``llama`` nor ``deci`` supports; the message names it.
    """
    DECODER.require(arch, work="written as GGUF")
    _refuse(arch)
    blocks: list[Block] = []
    waiting: tuple[Attention, int] | None = None
    for i, layer in enumerate(arch.layers):
        owner = i if layer.shares is None else layer.shares
        if layer.attention is not None:
            if waiting is not None:
                break
            waiting = (layer.attention, owner)
        if layer.ffn is not None:
            blocks.append(Block(attention=waiting, ffn=(layer.ffn, owner)))
            waiting = None
    if waiting is not None:
        raise Unsupported(
            f"GGUF cannot hold {arch.name}: the attention of layer {waiting[1]} is not followed by a feed-forward, and "
            f"llama.cpp drops an attention without one; {ELSEWHERE}"
        )
    if not blocks or blocks[0].attention is None:
        raise Unsupported(
            f"GGUF cannot hold {arch.name}: its first layer has no attention, and llama.cpp then takes the head size "
            f"as zero; {ELSEWHERE}"
        )
    return tuple(blocks)


def _refuse(arch: ArchSpec) -> None:
    attentions = [layer.attention for layer in arch.layers if layer.attention is not None]
    ffns = [layer.ffn for layer in arch.layers if layer.ffn is not None]
    sizes = sorted({attention.head_size for attention in attentions})
    others = sorted({("gated " if f.gated else "plain ") + f.activation for f in ffns} - {"gated silu"})
    faults = {
        f"norm: {arch.norm}": arch.norm != "rmsnorm",
        f"norm_place: {arch.norm_place}": arch.norm_place != "pre",
        f"positions: {arch.positions}": arch.positions != "rope",
        "convolutions before blocks": any(layer.convs for layer in arch.layers),
        "attention windows": any(attention.window is not None for attention in attentions),
        f"head sizes that differ ({', '.join(map(str, sizes))})": len(sizes) > 1,
        "grouped feed-forwards": any(f.groups > 1 for f in ffns),
        f"feed-forward of {', '.join(others)}": bool(others),
    }
    found = [name for name, there in faults.items() if there]
    if found:
        raise Unsupported(
            f"GGUF cannot hold {arch.name}: llama.cpp's architectures llama and deci have no {'; no '.join(found)}. "
            f"Both need RMSNorm before blocks, rotary positions, heads of one size and gated silu (swiglu); {ELSEWHERE}"
        )
    normed = [attention for attention in attentions if attention.qk_norm]
    equal = len(attentions) == len(arch.layers) and len(set(attentions)) == 1 == len(set(ffns))
    if normed and not (equal and normed[0].qk_norm_over == "head" and not normed[0].qkv_bias):
        raise Unsupported(
            f"GGUF cannot hold {arch.name}: llama.cpp normalises queries and keys (qk_norm) only in its architecture "
            "qwen3, which needs equal layers, norms per head and projections without bias"
        )


def family(blocks: tuple[Block, ...]) -> str:
    """llama.cpp's name of the architecture that ``blocks`` are written as."""
    first = blocks[0].attention
    if first is not None and first[0].qk_norm:
        return "qwen3"
    return "llama" if uniform(blocks) else "deci"


def uniform(blocks: tuple[Block, ...]) -> bool:
    """Whether all layers have the same heads and width, so that the file can state each as one number."""
    shapes = {
        None if block.attention is None else (block.attention[0].heads, block.attention[0].kv_heads, block.ffn[0].width)
        for block in blocks
    }
    return len(shapes) == 1 and None not in shapes


def export(
    design: Design,
    weights: Mapping[str, AnyArray],
    path: str | Path,
    *,
    tokenizer: Path | GgufTokenizer | None = None,
    packing: Packing = NEAREST,
    resumable: bool = False,
    on_tensor: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Writes ``design`` with ``weights`` (named as the torch module's state dict) to ``path``, atomically.

    Projections and the head are stored in the design's formats (int8 as Q8_0, int4 as Q4_0), the token table in the
    head's format, norms and biases in FP32. A tied head has no tensor of its own. Without a ``tokenizer`` (a
    ``tokenizer.json``, or one read from another file) the file accepts token ids only. Each weight is
    read when it is written; ``on_tensor`` receives the number of written tensors and the total. See
    :func:`write_file` for ``resumable``.

    Raises:
        MissingExtra: The ``gguf`` package is not installed.
        SpecError: A weight is missing or has the wrong shape.
        Unsupported: GGUF cannot represent the design or the tokenizer; the message says why.
        StorageError: The disk is full or refuses the file.
    """
    with optional_imports():
        from gguf import GGUFWriter
    blocks = layout(design.arch)
    if isinstance(tokenizer, Path):
        tokenizer = gguf_tokenizer(tokenizer, vocab_size=design.arch.vocab_size, max_tokens=design.arch.max_tokens)
    writer = GGUFWriter(None, family(blocks))
    _add_facts(writer, design, blocks)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
    else:
        tokenizer.write(writer)
    held = list(tensors(design, weights, blocks))
    for tensor in held:
        _announce(writer, tensor)
    stored = [partial(_stored, tensor, packing) for tensor in held]
    return write_file(writer, stored, Path(path), resumable=resumable, on_tensor=on_tensor)


def write_file(
    writer: GGUFWriter,
    stored: Sequence[Callable[[], AnyArray]],
    path: Path,
    *,
    resumable: bool,
    on_tensor: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Writes the metadata of ``writer`` and the tensors that it lists, atomically; each tensor is computed when needed.

    Args:
        writer: Holds the metadata and the list of tensors; it has not opened a file.
        stored: For each tensor, in the writer's order, a function that returns its bytes, the same at every call.
        path: The file to write.
        resumable: Whether a stopped call leaves what it wrote (``.NAME.part``), so that the next call continues after
            the last complete tensor. Bytes are only appended, so the file's length shows how many tensors are complete.
        on_tensor: Called with the number of written tensors and the total number.

    Raises:
        StorageError: The disk is full or refuses the file.
    """
    sizes = [each.nbytes for each in writer.tensors[0].values()]
    head = path.with_name(f".{path.name}.{os.getpid()}")
    part = path.with_name(f".{path.name}.part") if resumable else head.with_name(f"{head.name}.part")
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            writer.write_header_to_file(head)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            writer.close()
            begin = head.read_bytes()
            begin += bytes(-len(begin) % writer.data_alignment)
            part.touch()
            with part.open("r+b") as stream:
                whole = stream.read(len(begin)) == begin
                ends = [len(begin)]
                for size in sizes:
                    ends.append(ends[-1] + size + -size % writer.data_alignment)
                done = bisect_right(ends, part.stat().st_size) - 1 if whole else 0
                stream.seek(ends[done] if whole else 0)
                stream.truncate()
                stream.write(b"" if whole else begin)
                for number in range(done, len(sizes)):
                    stream.write(np.ascontiguousarray(stored[number]()).data)
                    stream.write(bytes(-stream.tell() % writer.data_alignment))
                    stream.flush()
                    if stream.tell() != ends[number + 1]:
                        raise ValueError(f"{path}: tensor {number} is not as long as the header states")
                    on_tensor(number + 1, len(sizes))
            part.replace(path)
        finally:
            head.unlink(missing_ok=True)
            if not resumable:
                part.unlink(missing_ok=True)
    return path


def export_if_possible(
    design: Design,
    weights: Mapping[str, AnyArray],
    path: Path,
    *,
    tokenizer: Path | None = None,
    packing: Packing = NEAREST,
) -> Path | None:
    """Calls :func:`export`; writes nothing and returns None if ``gguf`` is missing or GGUF cannot hold the design."""
    path.unlink(missing_ok=True)
    try:
        return export(design, weights, path, tokenizer=tokenizer, packing=packing)
    except (MissingExtra, Unsupported):
        return None


def _add_facts(writer: GGUFWriter, design: Design, blocks: tuple[Block, ...]) -> None:
    arch = design.arch
    attentions = [None if block.attention is None else block.attention[0] for block in blocks]
    heads = [0 if attention is None else attention.heads for attention in attentions]
    kv_heads = [0 if attention is None else attention.kv_heads for attention in attentions]
    widths = [block.ffn[0].width for block in blocks]
    one = uniform(blocks)
    head_size = next(attention.head_size for attention in attentions if attention is not None)
    writer.add_name(arch.name)
    writer.add_context_length(arch.max_tokens)
    writer.add_embedding_length(arch.d_model)
    writer.add_block_count(len(blocks))
    writer.add_feed_forward_length(widths[0] if one else widths)
    writer.add_head_count(heads[0] if one else heads)
    writer.add_head_count_kv(kv_heads[0] if one else kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(arch.rope_theta)
    writer.add_layer_norm_rms_eps(arch.norm_eps)
    writer.add_vocab_size(arch.vocab_size)
    facts = {
        "schema": SCHEMA,
        "design": design.digest,
        "name": arch.name,
        "weights": design.weights,
        "arch": to_data(arch),
    }
    writer.add_string(METADATA, json.dumps(facts))


class GgufTensor(NamedTuple):
    """A tensor of the file."""

    name: str
    source: str  # name of the weight in chipwise
    shape: tuple[int, ...]
    read: Callable[[], Float32Array]
    stored: str  # weight format


def tensors(design: Design, weights: Mapping[str, AnyArray], blocks: tuple[Block, ...]) -> Iterator[GgufTensor]:
    """The tensors of the file, in order.

    Raises:
        SpecError: A weight is missing or has the wrong shape.
    """
    arch, shapes = design.arch, weight_shapes(design.arch)

    def weight(name: str, heads: int) -> Float32Array:
        value = np.ascontiguousarray(weights[name], dtype=np.float32)
        if value.shape != shapes[name]:
            raise SpecError(f"has shape {value.shape}; the architecture needs {shapes[name]}", field=name)
        return interleaved(value, heads) if heads else value

    def tensor(name: str, source: str, stored: str, heads: int = 0) -> GgufTensor:
        if source not in weights:
            raise SpecError("the weights have no such tensor", field=source)
        return GgufTensor(name, source, tuple(shapes[source]), partial(weight, source, heads), stored)

    head = design.formats.head
    yield tensor("token_embd.weight", "embedding.weight", head)  # also the head of a model that ties both
    if not arch.tie_embeddings:
        yield tensor("output.weight", "head.weight", head)
    yield tensor("output_norm.weight", "norm.weight", "fp32")
    for number, block in enumerate(blocks):
        for name, source, heads in block_tensors(block, interleaves=INTERLEAVED[family(blocks)]):
            if source in shapes:  # otherwise it is a bias that this architecture lacks
                yield tensor(f"blk.{number}.{name}", source, design.format_of(source), heads)


def block_tensors(block: Block, *, interleaves: bool) -> Iterator[tuple[str, str, int]]:
    """GGUF name, chipwise name, and number of interleaved heads (0 for none) of every tensor a layer may have."""
    parts: list[tuple[str, int]] = [("ffn", block.ffn[1])]
    if block.attention is not None:
        parts.insert(0, ("attention", block.attention[1]))
    for kind, owner in parts:
        for own, name in NORMS.items():
            if own.startswith(kind):
                yield f"{name}.weight", f"layers.{owner}.{own}.weight", 0
        for own, name in PROJECTIONS.items():
            if own.split(".")[0] != kind:
                continue
            heads = 0
            if block.attention is not None and interleaves:
                heads = {"attn_q": block.attention[0].heads, "attn_k": block.attention[0].kv_heads}.get(name, 0)
            for part in ("weight", "bias"):
                yield f"{name}.{part}", f"layers.{owner}.{own}.{part}", heads


def interleaved(rows: Float32Array, heads: int) -> Float32Array:
    """Interleaves the rows of a query or key projection within each head, as llama.cpp's rotation expects.

    Row ``i`` in the first half of a head becomes row ``2 i`` of the head. Row ``i`` in the second half becomes
    row ``2 i + 1``.
    """
    split = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def split_halves(rows: Float32Array, heads: int) -> Float32Array:
    """The inverse of :func:`interleaved`."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _announce(writer: GGUFWriter, tensor: GgufTensor) -> None:
    """Adds a tensor to the header, before its values are read."""
    from gguf import GGML_QUANT_SIZES

    kind = ggml_type(tensor.stored)
    if tensor.stored in PACKED and tensor.shape[1] % BLOCK:
        raise Unsupported(
            f"GGUF stores {tensor.stored} rows in blocks of {BLOCK} values; {tensor.name} has rows of "
            f"{tensor.shape[1]}. Use fp32 or widths that are multiples of {BLOCK}"
        )
    block, block_bytes = GGML_QUANT_SIZES[kind]
    size = math.prod(tensor.shape) // block * block_bytes
    writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=kind)


def _stored(tensor: GgufTensor, packing: Packing) -> AnyArray:
    """The bytes of a tensor in the file."""
    from gguf.quants import quantize

    values = tensor.read()
    if tensor.stored in PACKED:
        return file_blocks(packing.pack(tensor.source, values, PACKED[tensor.stored]))
    made: AnyArray = quantize(values, ggml_type(tensor.stored))
    return made


def file_blocks(packed: Packed) -> npt.NDArray[np.uint8]:
    """Bytes (n, …) of the blocks of Q8_0 or Q4_0: a scale in FP16, then 32 values.

    Q4_0 stores values plus 8, the first 16 in the low nibbles. Rounding is the same as everywhere in chipwise, with the
    scale that minimises the squared error, so the file has the quality that the search measured.
    """
    stored = packed.values.view(np.uint8)
    if packed.form == "int4":
        halves = np.stack((stored & 15, stored >> 4), axis=-1).reshape(*stored.shape[:2], 2, BLOCK // 2)
        stored = halves[..., 0, :] | (halves[..., 1, :] << 4)
    blocks = np.concatenate((packed.scales.astype(np.float16)[..., None].view(np.uint8), stored), axis=-1)
    return np.ascontiguousarray(blocks.reshape(len(blocks), -1))


def ggml_type(weights: str) -> GGMLQuantizationType:
    """GGML type of a weight format.

    Raises:
        Unsupported: GGUF has no such format.
    """
    from gguf import GGMLQuantizationType

    if weights not in TYPES:
        raise Unsupported(f" GGUF files cannot be written with {weights} weights; use {', '.join(TYPES)}")
    return GGMLQuantizationType[TYPES[weights]]

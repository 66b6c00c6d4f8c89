"""Weight formats of a file by part of the model: token table, head, attention, feed-forward and others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from chipwise.core.dtypes import weight_format
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import GRID, Grid
from chipwise.model.walk.weights import weight_shapes

_PARTS = (  # the first pattern that occurs in a weight's name decides
    ("norm", "norms and biases"),
    ("bias", "norms and biases"),
    ("conv", "convolutions"),
    ("attn_", "attention"),
    ("attention", "attention"),
    ("self_attn", "attention"),
    ("cross", "attention to the image"),
    ("ffn", "feed-forward"),
    ("mlp", "feed-forward"),
    ("token_embd", "token table"),
    ("embedding", "token table"),
    ("embed_tokens", "token table"),
    ("output", "head"),
    ("head", "head"),
    ("stem", "stem"),
    ("positions", "positions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """A part of some or all layers that is stored in one format."""

    part: str
    layers: str  # such as "0-29"; empty outside the layers
    format: str
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Stored:
    name: str
    layer: int | None
    format: str
    parameters: int
    bytes: int


def groups_of_gguf(path: Path) -> list[LayerGroup]:
    """The groups of a GGUF file, read from its tensors."""
    file = GgufFile.open(path)
    tied = "output.weight" not in file.tensors
    found = []
    for name, tensor in file.tensors.items():
        number = int(name.split(".")[1]) if name.startswith("blk.") else None
        count = math.prod(int(size) for size in tensor.shape)
        found.append(_Stored(name, number, tensor.tensor_type.name, count, int(tensor.n_bytes)))
    return list(_grouped(found, tied="token table and head" if tied else None))


def groups_of_compressed(path: Path) -> list[LayerGroup]:
    """The groups of a compressed-tensors file; the size of a matrix includes its scales."""
    from safetensors import safe_open

    found = []
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name in names:
            tensor = file.get_tensor(name)
            place, _, part = name.rpartition(".")
            narrow = "int4" if f"{place}.weight_packed" in names else "fp8"
            kind = narrow if f"{place}.weight_scale" in names else "bf16"
            each = {"weight_packed": 8, "weight": 1}.get(part, 0 if kind == narrow else 1)
            number = int(name.split(".")[2]) if ".layers." in name else None
            found.append(_Stored(name, number, kind, tensor.numel() * each, tensor.nbytes))
    found.sort(key=lambda item: (-1 if item.layer is None else item.layer, item.name))
    tied = "lm_head.weight" not in {item.name for item in found}
    return list(_grouped(found, tied="token table and head" if tied else None))


def groups_of(design: Design, grid: Grid = GRID) -> list[LayerGroup]:
    """The groups of an ONNX file or, if weights are in FP32, of a Hugging Face folder."""
    found = []

    def size_of(kind: str, k: int, n: int) -> int:
        own = weight_format(kind)
        own = replace(own, block=grid.block, zero_bits=0 if grid.symmetric else 4) if kind == "int4" else own
        return int(own.matrix_bytes(k, n))

    for name, shape in weight_shapes(design.arch).items():
        parts, kind = name.split("."), design.format_of(name)
        count = math.prod(shape)
        whole = size_of(kind, math.prod(shape[1:]), shape[0]) if len(shape) > 1 else 4 * count
        number = int(parts[1]) if parts[0] == "layers" else None
        found.append(_Stored(name, number, kind if len(shape) > 1 else "fp32", count, whole))
    arch, head = design.arch, design.formats.head
    copied = arch.vocab_size > 0 and arch.tie_embeddings and head != "fp32"
    if copied:
        size = size_of(head, arch.d_model, arch.vocab_size)
        found.append(_Stored("head.weight", None, head, arch.vocab_size * arch.d_model, size))
    tied = arch.vocab_size > 0 and arch.tie_embeddings and not copied and arch.head.writes
    return list(_grouped(found, tied="token table and head" if tied else None))


def _grouped(stored: Iterable[_Stored], *, tied: str | None) -> Iterator[LayerGroup]:
    def key(item: _Stored) -> tuple[str, str]:
        part = next((part for word, part in _PARTS if word in item.name), "others")
        return (tied if tied and part == "token table" else part), item.format

    items = list(stored)
    for part, kind in dict.fromkeys(map(key, items)):
        own = [item for item in items if key(item) == (part, kind)]
        numbers = sorted({item.layer for item in own if item.layer is not None})
        yield LayerGroup(
            part=part,
            layers=ranges(numbers),
            format=kind,
            parameters=sum(item.parameters for item in own),
            bytes=sum(item.bytes for item in own),
        )


def ranges(numbers: Iterable[int]) -> str:
    """Lists numbers as text, with consecutive ones written as ranges.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    found = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        values = [value for _, value in run]
        found.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ", ".join(found)

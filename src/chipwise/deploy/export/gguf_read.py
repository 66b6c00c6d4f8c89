"""Reads GGUF files: the design, and the weights as the torch module's state dict.

Files written by ``deploy/export/gguf.py`` contain their design. Other files are supported if their architecture is
``llama``, ``deci``, ``qwen2`` or ``qwen3``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.core.extras import optional_imports
from chipwise.deploy.export.gguf import INTERLEAVED, METADATA, SCHEMA, TYPES, block_tensors, layout, split_halves
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import LmHead, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.io import from_data
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.walk.weights import weight_shapes

if TYPE_CHECKING:
    from gguf import GGUFValueType

_FORMATS = {kind: name for name, kind in TYPES.items()}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file: its metadata, and its tensors, which are read on access."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Any]  # gguf.ReaderTensor by name
    kinds: dict[str, list[GGUFValueType]]  # gguf.GGUFValueType of each metadata field, and of its items

    @classmethod
    def open(cls, path: str | Path) -> GgufFile:
        """Reads the header of ``path``.

        Raises:
            MissingExtra: The ``gguf`` package is not installed.
            SpecError: There is no such file, or it is not GGUF.
        """
        with optional_imports():
            from gguf import GGUFReader
        if not Path(path).is_file():
            raise SpecError("there is no such file", file=str(path))
        try:
            reader = GGUFReader(path)
            fields = {name: field.contents() for name, field in reader.fields.items()}
        except (ValueError, IndexError, KeyError, OverflowError, OSError, UnicodeDecodeError) as error:
            raise SpecError(f"not a whole GGUF file; write or download it again ({error})", file=str(path)) from None
        kinds = {name: list(field.types) for name, field in reader.fields.items()}
        return cls(Path(path), fields, {tensor.name: tensor for tensor in reader.tensors}, kinds)

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata field of the architecture, such as ``block_count``.

        Raises:
            SpecError: The field is missing and has no default.
        """
        key = f"{self.fields['general.architecture']}.{name}"
        if key not in self.fields and default is None:
            raise SpecError("the file has no such field", file=str(self.path), field=key)
        return self.fields.get(key, default)

    @property
    def interleaves(self) -> bool:
        """Whether rotary positions pair neighbouring values of a head instead of values of its two halves."""
        return INTERLEAVED[str(self.fields["general.architecture"])]

    def values(self, name: str) -> Float32Array:
        """A tensor in FP32.

        Raises:
            SpecError: There is no such tensor.
            Unsupported: The tensor's type is not supported.
        """
        from gguf.quants import dequantize

        if name not in self.tensors:
            raise SpecError("the file has no such tensor", file=str(self.path), field=name)
        tensor = self.tensors[name]
        try:
            return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            raise Unsupported(
                f"{self.path}: {name} is stored as {tensor.tensor_type.name}, which chipwise cannot read"
            ) from None


def read_design(path: str | Path) -> Design:
    """The design in the GGUF file ``path``.

    Raises:
        MissingExtra: The ``gguf`` package is not installed.
        SpecError: The file is not GGUF, or is broken.
        Unsupported: The architecture, or a layer's mixture of weight formats, is not supported.
    """
    return _design(GgufFile.open(path))


def read(path: str | Path) -> tuple[Design, dict[str, Float32Array]]:
    """The design and its weights in FP32, named as the torch module's state dict. Raises like :func:`read_design`."""
    file = GgufFile.open(path)
    design = _design(file)
    return design, _values(file, design.arch)


def read_weights(path: str | Path) -> tuple[ArchSpec, dict[str, Float32Array]]:
    """The architecture and its weights in FP32, whatever types are stored.

    Raises:
        MissingExtra: The ``gguf`` package is not installed.
        SpecError: The file is not GGUF, or is broken.
        Unsupported: The architecture, the scaling of positions or a tensor's type is not supported.
    """
    file = GgufFile.open(path)
    arch = read_arch(file)
    return arch, _values(file, arch)


def read_arch(file: GgufFile) -> ArchSpec:
    """The architecture of a file, if chipwise can compute its logits. Tensors may have any type.

    Raises:
        Unsupported: The architecture or the scaling of positions is not supported.
    """
    if METADATA in file.fields:
        return from_data(json.loads(file.fields[METADATA])["arch"], file=str(file.path))
    _check_family(file)
    arch = _arch(file)
    head_size = next(layer.attention.head_size for layer in arch.layers if layer.attention is not None)
    if (scaling := file.field("rope.scaling.type", "none")) != "none":
        raise Unsupported(f"{file.path}: rotary positions scaled by {scaling!r} are not supported")
    if (turned := int(file.field("rope.dimension_count", head_size))) != head_size:
        raise Unsupported(f"{file.path}: {turned} of {head_size} values of a head are rotated, which is not supported")
    return arch


def _values(file: GgufFile, arch: ArchSpec) -> dict[str, Float32Array]:
    shapes = weight_shapes(arch)
    weights = {"embedding.weight": file.values("token_embd.weight"), "norm.weight": file.values("output_norm.weight")}
    if not arch.tie_embeddings:
        weights["head.weight"] = file.values("output.weight")
    for number, block in enumerate(layout(arch)):
        for name, own, heads in block_tensors(block, interleaves=file.interleaves):
            if own in shapes:
                value = file.values(f"blk.{number}.{name}")
                weights[own] = split_halves(value, heads) if heads else value
    for name, value in weights.items():
        if value.shape != shapes[name]:
            raise SpecError(f"has shape {value.shape}; metadata imply {shapes[name]}", file=str(file.path), field=name)
    return weights


def _design(file: GgufFile) -> Design:
    if METADATA in file.fields:
        facts = json.loads(file.fields[METADATA])
        if facts.get("schema") != SCHEMA:
            raise SpecError(f"{facts.get('schema')!r} is not known; this version reads {SCHEMA}", file=str(file.path))
        return Design(arch=from_data(facts["arch"], file=str(file.path)), weights=facts["weights"])
    _check_family(file)
    return Design(arch=_arch(file), weights=_weights(file))


def _check_family(file: GgufFile) -> None:
    kind = file.fields.get("general.architecture")
    if kind not in INTERLEAVED:
        raise Unsupported(
            f"{file.path}: a GGUF file of architecture {kind}; chipwise can read {', '.join(INTERLEAVED)} (for others "
            "use llama.cpp's own tools)"
        )
    if "rope_freqs.weight" in file.tensors or file.field("expert_count", 0):
        raise Unsupported(
            f"{file.path}: costs of files with experts or with scaled rotary positions cannot be predicted"
        )


def _arch(file: GgufFile) -> ArchSpec:
    count = int(file.field("block_count"))
    heads = _each(file.field("attention.head_count"), count)
    kv_heads = _each(file.field("attention.head_count_kv", heads), count)
    widths = _each(file.field("feed_forward_length"), count)
    d_model = int(file.field("embedding_length"))
    head_size = int(file.field("attention.key_length", d_model // max(heads)))
    layers = []
    for i in range(count):
        attention = (
            Attention(
                heads=heads[i],
                kv_heads=kv_heads[i],
                head_size=head_size,
                qkv_bias=f"blk.{i}.attn_q.bias" in file.tensors,
                out_bias=f"blk.{i}.attn_output.bias" in file.tensors,
                qk_norm=f"blk.{i}.attn_q_norm.weight" in file.tensors,
            )
            if heads[i]
            else None
        )
        bias = f"blk.{i}.ffn_up.bias" in file.tensors
        layers.append(Layer(attention=attention, ffn=FeedForward(width=widths[i], bias=bias)))
    return ArchSpec(
        name=str(file.fields.get("general.name", file.path.stem)),
        stem=Tokens(vocab_size=int(file.tensors["token_embd.weight"].shape[1])),
        head=LmHead(tied="output.weight" not in file.tensors),
        d_model=d_model,
        layers=tuple(layers),
        max_tokens=int(file.field("context_length")),
        norm_eps=float(np.format_float_positional(np.float32(file.field("attention.layer_norm_rms_epsilon")))),
        rope_theta=float(file.field("rope.freq_base", 10_000.0)),
    )


def _each(value: Any, count: int) -> list[int]:
    """One number per layer, from a field that has either one number for all layers or a number for each layer."""
    return [int(item) for item in value] if isinstance(value, Sequence) else [int(value)] * count


def _weights(file: GgufFile) -> str:
    """Weight format of all projections, or a mixture's name if layers or head have different formats.

    Raises:
        Unsupported: Formats differ within a layer, or a format has no known cost.
    """
    layers = []
    for i in range(int(file.field("block_count"))):
        inside = (name for name in file.tensors if name.startswith(f"blk.{i}.") and len(file.tensors[name].shape) == 2)
        layers.append(_format(file, sorted(inside), f"layer {i}"))
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    if len(set(layers)) == 1 and file.tensors[head].tensor_type.name not in _FORMATS:
        return layers[0]
    return formats_word(layers, _format(file, [head], "the head"))


def _format(file: GgufFile, names: list[str], place: str) -> str:
    """The common weight format of the tensors ``names``."""
    found = {file.tensors[name].tensor_type.name for name in names}
    if len(found) != 1 or not found <= set(_FORMATS):
        raise Unsupported(
            f"{file.path}: the matrices of {place} are stored as {', '.join(sorted(found))}; costs can only be "
            f"predicted if all matrices of a layer have one of the formats {', '.join(_FORMATS)}"
        )
    return _FORMATS[found.pop()]

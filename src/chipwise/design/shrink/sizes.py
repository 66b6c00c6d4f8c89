"""Defines the sizes of a pruned model, and which rows and columns of the original's weights it keeps.

Axes of weights that belong together have the same label: ``layers.3.query`` and ``layers.3.kv`` (outputs of heads), or
``layers.3.ffn`` (neurons). Permuting the entries of all axes with the same label does not change the model's outputs.
Entries are first ordered by importance; a pruned model then has the first entries of each label.

A KV head is removed together with all of its query heads, because these are useless with other keys. Cross-attention is
never pruned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Pooler
from chipwise.model.walk.weights import weight_shapes

Index = npt.NDArray[np.int64]
Labels = tuple[str | None, ...]
_INNER = {"q": "query", "k": "kv", "v": "kv", "gate": "ffn", "up": "ffn"}  # input projections: label of rows
_POINTWISE = {"gate": "query", "norm": "query"}  # for pointwise attention
_BACK = {"out": "query", "down": "ffn"}  # output projections: label of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a pruned model: KV heads and FFN neurons of each layer (0 removes the block)."""

    heads: tuple[int, ...]  # KV heads per layer, each with its query heads
    neurons: tuple[int, ...]

    def block(self, layer: int, kind: str) -> int:
        """Size of one block; ``kind`` is ``attention`` or ``ffn``."""
        return self.of_kind(kind)[layer]

    def of_kind(self, kind: str) -> tuple[int, ...]:
        """Sizes of all blocks of one kind, in the order of the layers."""
        return self.heads if kind == "attention" else self.neurons

    def with_kind(self, kind: str, sizes: tuple[int, ...]) -> Sizes:
        """A copy in which the blocks of one kind have these sizes, given in the order of the layers."""
        return replace(self, heads=sizes) if kind == "attention" else replace(self, neurons=sizes)

    def with_block(self, layer: int, kind: str, size: int) -> Sizes:
        """A copy in which one block has the given size."""
        sizes = self.of_kind(kind)
        return self.with_kind(kind, (*sizes[:layer], size, *sizes[layer + 1 :]))


def whole_sizes(arch: ArchSpec) -> Sizes:
    """The sizes of ``arch`` itself, before any pruning.

    Raises:
        Unsupported: The model has grouped feed-forwards, which cannot be pruned.
    """
    if any(getattr(layer.ffn, "groups", 1) > 1 for layer in arch.layers):
        raise Unsupported(f"{arch.name}: grouped feed-forwards cannot be cut; start from a model with dense ones")
    return Sizes(
        heads=tuple(0 if layer.attention is None else layer.attention.kv_heads for layer in arch.layers),
        neurons=tuple(0 if layer.ffn is None else layer.ffn.width for layer in arch.layers),
    )


def blocks(arch: ArchSpec) -> Iterator[tuple[int, str]]:
    """Layer and kind of each block, in order."""
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield i, "attention"
        if layer.ffn is not None:
            yield i, "ffn"


def cut_arch(whole: ArchSpec, sizes: Sizes) -> ArchSpec:
    """The architecture of the pruned model, with as many layers as ``whole``; layers may have no block left.

    Raises:
        SpecError: A size is larger than in ``whole``.
    """
    _check(whole, sizes)
    layers = []
    for layer, heads, neurons in zip(whole.layers, sizes.heads, sizes.neurons, strict=True):
        attention = ffn = None
        if layer.attention is not None and heads:
            group = layer.attention.heads // layer.attention.kv_heads
            attention = replace(layer.attention, heads=heads * group, kv_heads=heads)
        if layer.ffn is not None and neurons:
            ffn = replace(layer.ffn, width=neurons)
        taps = (layer.attention_conv if attention else 0, layer.ffn_conv if ffn else 0)
        layers.append(replace(layer, attention=attention, ffn=ffn, attention_conv=taps[0], ffn_conv=taps[1]))
    return replace(whole, layers=tuple(layers))


def cut_weights(whole: ArchSpec, sizes: Sizes, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the pruned model, as views of the weights of ``whole``, named as in :func:`cut_arch`."""
    sub = cut_arch(whole, sizes)
    length = {}
    for i, layer in enumerate(sub.layers):
        if layer.attention is not None:
            length[f"layers.{i}.query"] = layer.attention.query_width
            length[f"layers.{i}.kv"] = layer.attention.kv_width
            length[f"layers.{i}.heads"] = layer.attention.heads
        if layer.ffn is not None:
            length[f"layers.{i}.ffn"] = layer.ffn.width
    found = {}
    for name in weight_shapes(sub):
        value = weights[name]
        for axis, label in enumerate(labels(name)):
            if label is not None and length[label] != value.shape[axis]:
                value = value.narrow(axis, 0, length[label])
        found[name] = value
    return found


def reorder(weights: Mapping[str, Tensor], order: Mapping[str, Index]) -> dict[str, Tensor]:
    """Permutes the entries of each label into ``order`` in all weights; the model's outputs stay the same."""
    found = {}
    for name, value in weights.items():
        for axis, label in enumerate(labels(name)):
            if label is not None and label in order:
                value = value.index_select(axis, torch.from_numpy(order[label]))
        found[name] = value.contiguous()
    return found


def labels(name: str) -> Labels:
    """The label of each axis of the weight ``name``, None for axes without one; trailing Nones are left out."""
    if number := re.fullmatch(r"positions\.(\d+)\..*", name):  # biases per head, by relative position
        return (None, f"layers.{number[1]}.heads")
    layer = re.match(r"(layers\.\d+)\.(.*)\.(weight|bias)", name)
    if layer is None or layer[2].startswith("cross"):  # cross-attention is not pruned
        return ()
    place, last = layer[1], layer[2].rpartition(".")[2]
    if layer[2] in ("attention.gate", "attention.norm"):
        return (f"{place}.{_POINTWISE[last]}",)
    if last in _INNER:
        return (f"{place}.{_INNER[last]}",)
    return (None, f"{place}.{_BACK[last]}") if last in _BACK and layer[3] == "weight" else ()


def generates(arch: ArchSpec) -> bool:
    """Whether a model generates tokens, judged by its head; this works even if no attention is left."""
    return arch.head.writes


def compact(arch: ArchSpec, weights: Mapping[str, Tensor]) -> tuple[ArchSpec, dict[str, Tensor]]:
    """Removes layers that have no block left, but keeps at least one layer."""
    kept = [i for i, layer in enumerate(arch.layers) if any(layer.blocks())] or [0]
    number = {old: new for new, old in enumerate(kept)}
    renamed = {}
    for name, value in weights.items():
        match = re.match(r"(layers|positions)\.(\d+)\.(.*)", name)
        renamed[f"{match[1]}.{number[int(match[2])]}.{match[3]}" if match else name] = value
    return replace(arch, layers=tuple(arch.layers[i] for i in kept)), renamed


def require_cuttable(arch: ArchSpec) -> None:
    """Checks that ``arch`` is an architecture that can be pruned.

    Raises:
        Unsupported: Layers share weights, or the model has a pooler.
    """
    if any(layer.shares is not None for layer in arch.layers):
        raise Unsupported(f"{arch.name}: layers that share weights cannot be cut separately; start from another model")
    if isinstance(arch.head, Pooler):
        raise Unsupported(f"{arch.name}: a pooler cannot be cut; start from the encoder without pooler (mean pooling)")


def _check(whole: ArchSpec, sizes: Sizes) -> None:
    most = whole_sizes(whole)
    for name in ("heads", "neurons"):
        found, limit = getattr(sizes, name), getattr(most, name)
        if len(found) != len(limit):
            raise SpecError(f"has {len(found)} layers, but the model has {len(limit)}", field=name)
        for i, (size, top) in enumerate(zip(found, limit, strict=True)):
            if not 0 <= size <= top:
                raise SpecError(f"must lie between 0 and {top}, not {size}", field=f"{name}[{i}]")

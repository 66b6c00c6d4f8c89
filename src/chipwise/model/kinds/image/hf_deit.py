"""DeiT classifiers in Hugging Face folders: the names of their weights.

References:
    Names on disk: ``DeiTForImageClassification`` of transformers 4, whose names published checkpoints use, and of
        transformers 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.hf_vit import BLOCKS, OUTSIDE
from chipwise.model.walk.weights import weight_shapes

# In transformers 4, DeiT's weights have the same names as ViT's.
_OUTSIDE = {theirs.removeprefix("vit."): ours for ours, theirs in OUTSIDE.items()}
_BLOCKS = {theirs: ours for ours, theirs in BLOCKS.items()}
_NEWER = {  # names of transformers 5, with the corresponding names of version 4
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_DEIT = re.compile(r"(?:encoder\.layer|layers)\.(\d+)\.(.+)")


def from_deit(arch: ArchSpec, tensors: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """A DeiT checkpoint's weights under chipwise's names; unknown names are kept.

    The class token and the distillation token become the rows of one table.
    """
    found: dict[str, Float32Array] = {}
    tokens = {}
    for full, value in tensors.items():
        name = full.removeprefix("deit.")
        if name in ("embeddings.cls_token", "embeddings.distillation_token"):
            tokens[name] = value.reshape(-1, arch.d_model)
        elif name == "embeddings.position_embeddings":
            found["positions.weight"] = value.reshape(-1, arch.d_model)
        else:
            ours = _deit_name(name)
            found[ours or full] = _flat(arch, ours, value)
    if len(tokens) == 2:
        found["stem.prefix.weight"] = np.concatenate(
            [tokens[name] for name in sorted(tokens)]
        )  # the class token before the distillation token
    return found


def _deit_name(name: str) -> str | None:
    if (outside := _outside(name)) is not None:
        return outside
    if (parts := _DEIT.fullmatch(name)) is None:
        return None
    inside = _block(parts[2])
    return None if inside is None else f"layers.{parts[1]}.{inside}"


def _outside(name: str) -> str | None:
    place, _, kind = name.rpartition(".")
    return f"{_OUTSIDE[place]}.{kind}" if place in _OUTSIDE else None


def _block(name: str) -> str | None:
    place, _, kind = name.rpartition(".")
    place = _NEWER.get(place, place)
    return f"{_BLOCKS[place]}.{kind}" if place in _BLOCKS else None


def _flat(arch: ArchSpec, name: str | None, value: Float32Array) -> Float32Array:
    """Reshapes the patch convolution to a matrix; returns any other weight unchanged."""
    shape = weight_shapes(arch)["stem.projection.weight"]
    return value.reshape(shape) if name == "stem.projection.weight" and value.size == np.prod(shape) else value

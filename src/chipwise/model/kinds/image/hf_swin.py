"""Swin and DeiT classifiers in Hugging Face folders: the names of their weights, and Swin's config.

References:
    Names on disk: ``SwinForImageClassification`` and ``DeiTForImageClassification`` in versions 4 (published
        checkpoints) and 5 of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.hf_vit import ACTIVATIONS, labels_of
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.published.read import from_config
from chipwise.model.walk.weights import weight_shapes

_OUTSIDE = {
    "embeddings.patch_embeddings.projection": "stem.projection",
    "embeddings.norm": "stem.norm",
    "layernorm": "norm",
    "classifier": "head",
}
_BLOCKS = {
    "layernorm_before": "attention_norm",
    "attention.self.query": "attention.q",
    "attention.self.key": "attention.k",
    "attention.self.value": "attention.v",
    "attention.output.dense": "attention.out",
    "layernorm_after": "ffn_norm",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
}
_NEWER = {  # version 5's names, and the names in version 4
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_TABLE = re.compile(r"attention\.(self|relative_position_bias)\.relative_position_bias_table")
_INDEX = re.compile(r"relative_(position_index|coords_table)$")  # buffers
_SWIN = re.compile(r"encoder\.layers\.(\d+)\.(blocks\.(\d+)\.(.+)|downsample\.(norm|reduction)\.(weight|bias))")
_DEIT = re.compile(r"(?:encoder\.layer|layers)\.(\d+)\.(.+)")
_EPS = 1e-5  # epsilon of the norms before patch merging, whatever the config says


def from_swin(arch: ArchSpec, tensors: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """A Swin checkpoint's weights under chipwise's names; unknown names are kept.

    Raises:
        Unsupported: The config's epsilon differs from that of the norms before patch merging.
    """
    if arch.norm_eps != _EPS:
        raise Unsupported(f"norms with eps {arch.norm_eps} beside those of merges, which have {_EPS}, are not read")
    found = {}
    for full, value in tensors.items():
        if _INDEX.search(full):
            continue
        name = swin_name(full.removeprefix("swin."), len(arch.stem_as(ImageStem).stages))
        found[name or full] = _flat(arch, name, value)
    return found


def swin_name(name: str, stages: int) -> str | None:
    """chipwise's name of a Swin checkpoint's weight, or None. ``stages`` is the number of stages before the last one.

    >>> swin_name("encoder.layers.0.blocks.1.attention.self.key.bias", 3)
    'stages.0.layers.1.attention.k.bias'
    >>> swin_name("encoder.layers.3.blocks.0.mlp.fc1.weight", 3)
    'layers.0.ffn.up.weight'
    """
    if (outside := _outside(name)) is not None:
        return outside
    if (parts := _SWIN.fullmatch(name)) is None:
        return None
    stage, _, number, rest, merge, kind = parts.groups()
    before = f"stages.{stage}." if int(stage) < stages else ""
    if merge:
        return f"{before}{'merge' if merge == 'reduction' else 'norm'}.{kind}"
    if _TABLE.fullmatch(rest):
        return f"{before}positions.{number}.weight"
    inside = _block(rest)
    return None if inside is None else f"{before}layers.{number}.{inside}"


def to_swin(arch: ArchSpec, stem: ImageStem, weights: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """``weights`` with Swin's names and shapes."""
    found = {}
    for name, value in weights.items():
        if name == "stem.projection.weight":
            value = value.reshape(len(value), stem.channels, stem.patch, stem.patch)
        found[_swin_place(name, len(stem.stages))] = value
    return found


def _swin_place(name: str, stages: int) -> str:
    place, _, kind = name.rpartition(".")
    outside = {ours: theirs for theirs, ours in _OUTSIDE.items()}
    if place in outside:
        return f"{outside[place]}.{kind}" if place == "head" else f"swin.{outside[place]}.{kind}"
    stage = stages
    if place.startswith("stages."):
        _, number, place = place.split(".", 2)
        stage = int(number)
    before = f"swin.encoder.layers.{stage}"
    if place in ("norm", "merge"):
        return f"{before}.downsample.{'reduction' if place == 'merge' else 'norm'}.{kind}"
    stack, number, *rest = place.split(".", 2)
    if stack == "positions":
        return f"{before}.blocks.{number}.attention.self.relative_position_bias_table"
    blocks = {ours: theirs for theirs, ours in _BLOCKS.items()}
    return f"{before}.blocks.{number}.{blocks[rest[0]]}.{kind}"


def swin_config(arch: ArchSpec) -> dict[str, object]:
    """``arch`` as the config of a ``SwinForImageClassification``.

    Raises:
        Unsupported: The class does not compute ``arch``.
    """
    stem, last = arch.stem_as(ImageStem), arch.layers[0]
    if not stem.stages or last.attention is None or last.ffn is None or last.ffn.gated:
        raise Unsupported(f"{arch.name} is no Swin")
    all_stages = [(stage.depth, stage.attention) for stage in stem.stages] + [(len(arch.layers), last.attention)]
    config = {
        "architectures": ["SwinForImageClassification"],
        "model_type": "swin",
        "embed_dim": stem.stages[0].d_model,
        "depths": [depth for depth, _ in all_stages],
        "num_heads": [attention.heads for _, attention in all_stages],
        "window_size": max(attention.square or 1 for _, attention in all_stages),
        "mlp_ratio": last.ffn.width / arch.d_model,
        "qkv_bias": last.attention.qkv_bias,
        "hidden_act": ACTIVATIONS.get(last.ffn.activation),
        "image_size": stem.image_size,
        "patch_size": stem.patch,
        "num_channels": stem.channels,
        "layer_norm_eps": arch.norm_eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.0,
        **labels_of(arch),
    }
    try:
        same = from_config(config).digest == arch.digest
    except SpecError:
        same = False
    if not same or arch.norm_eps != _EPS:
        raise Unsupported(f"{arch.name} has stages that differ from Swin's, and no Hugging Face folder of its own")
    return config


def from_deit(arch: ArchSpec, tensors: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """A DeiT checkpoint's weights under chipwise's names, its two tokens in one table; unknown names are kept."""
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
        )  # class token before distillation token
    return found


def _deit_name(name: str) -> str | None:
    if (outside := _outside(name)) is not None:
        return outside
    if (parts := _DEIT.fullmatch(name)) is None:
        return None
    inside = _block(parts[2].replace("attention.attention.", "attention.self."))
    return None if inside is None else f"layers.{parts[1]}.{inside}"


def _outside(name: str) -> str | None:
    place, _, kind = name.rpartition(".")
    return f"{_OUTSIDE[place]}.{kind}" if place in _OUTSIDE else None


def _block(name: str) -> str | None:
    place, _, kind = name.rpartition(".")
    place = _NEWER.get(place, place)
    return f"{_BLOCKS[place]}.{kind}" if place in _BLOCKS else None


def _flat(arch: ArchSpec, name: str | None, value: Float32Array) -> Float32Array:
    """The patch convolution as a matrix; other weights are unchanged."""
    shape = weight_shapes(arch)["stem.projection.weight"]
    return value.reshape(shape) if name == "stem.projection.weight" and value.size == np.prod(shape) else value

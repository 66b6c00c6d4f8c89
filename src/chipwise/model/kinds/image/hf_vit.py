"""ViT classifiers in Hugging Face folders: names of weights, and the config of a uniform classifier.

References:
    Names on disk: ``ViTForImageClassification`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float32Array
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import Activation, FeedForward
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import published_name
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.walk.weights import weight_shapes

OUTSIDE = {
    "stem.projection": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "head": "classifier",
}
_TABLES = {"stem.prefix.weight": "vit.embeddings.cls_token", "positions.weight": "vit.embeddings.position_embeddings"}
BLOCKS = {
    "attention_norm": "layernorm_before",
    "attention.q": "attention.attention.query",
    "attention.k": "attention.attention.key",
    "attention.v": "attention.attention.value",
    "attention.out": "attention.output.dense",
    "ffn_norm": "layernorm_after",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
}
ACTIVATIONS: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def is_vit(arch: ArchSpec) -> bool:
    """Whether ``ViTForImageClassification`` computes exactly ``arch``: equal layers, class token, no convolutions."""
    first = arch.layers[0]
    attention, ffn = first.attention, first.ffn
    given = arch.stem
    if not CLASSIFIER.builds(arch) or not isinstance(given, ImageStem):
        return False
    if not isinstance(attention, Attention) or not isinstance(ffn, FeedForward):
        return False
    if given.axes != 2 or arch.positions != "learned":
        return False
    stem = not given.convs and given.bias and given.prefix_tokens == 1 and arch.head.pooling == "first"
    alike = all(layer == first for layer in arch.layers)
    biases = attention.out_bias and ffn.bias and arch.norm == "layernorm" and arch.norm_bias
    square = attention.query_width == arch.d_model
    return stem and alike and biases and square and not ffn.gated and ffn.activation in ACTIVATIONS


def vit_config(arch: ArchSpec) -> dict[str, object]:
    """``arch`` as the config of a ``ViTForImageClassification``.

    Raises:
        Unsupported: The class does not compute ``arch``.
    """
    first = arch.layers[0]
    stem = arch.stem_as(ImageStem)
    if not is_vit(arch) or first.attention is None or first.ffn is None:
        raise Unsupported(f"{arch.name} is not a ViT: its layers differ, it has convolutions, or it has no class token")
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": arch.d_model,
        "intermediate_size": first.ffn.width,
        "num_hidden_layers": len(arch.layers),
        "num_attention_heads": first.attention.heads,
        "hidden_act": ACTIVATIONS[first.ffn.activation],
        "image_size": stem.image_size,
        "patch_size": stem.patch,
        "num_channels": stem.channels,
        "qkv_bias": first.attention.qkv_bias,
        "layer_norm_eps": arch.norm_eps,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **labels_of(arch),
    }


def labels_of(arch: ArchSpec, names: tuple[str, ...] = ()) -> dict[str, object]:
    """The config fields that name the classes; without ``names``, a class is named by its number."""
    shown = names or tuple(f"LABEL_{i}" for i in range(arch.outputs))
    return {"id2label": {str(i): name for i, name in enumerate(shown)}, "label2id": {n: i for i, n in enumerate(shown)}}


def vit_name(name: str) -> str:
    """The name that chipwise's weight ``name`` has in a ViT checkpoint."""
    return _TABLES[name] if name in _TABLES else published_name(name, OUTSIDE, BLOCKS, "vit.encoder.layer")


def to_vit(arch: ArchSpec, stem: ImageStem, weights: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """``weights`` with ViT's names and shapes: the patch matrix as a convolution, and tables with a first axis of 1."""
    found = {}
    for name, value in weights.items():
        if name == "stem.projection.weight":
            value = value.reshape(arch.d_model, stem.channels, stem.patch, stem.patch)
        found[vit_name(name)] = value[None] if name in _TABLES else value
    return found


def from_vit(arch: ArchSpec, tensors: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """A ViT checkpoint's weights under chipwise's names. Unknown weights keep their names."""
    shapes = weight_shapes(arch)
    names = {vit_name(name): name for name in shapes}
    found = {}
    for full, value in tensors.items():
        name = names.get(full, full)
        flat = name in _TABLES or name == "stem.projection.weight"
        fits = name in shapes and value.size == np.prod(shapes[name])
        found[name] = value.reshape(shapes[name]) if flat and fits else value
    return found

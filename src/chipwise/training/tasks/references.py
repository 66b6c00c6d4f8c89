"""Reference designs for several tasks: decoders with Llama's proportions, classifiers with DeiT's.

References:
    Touvron et al. 2021, Training data-efficient image transformers, arXiv:2012.12877, table 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chipwise.model.kinds.image.choices import EVERYWHERE, LEARNED, PATCHES, ImageSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.one_pass import inputs_of

ALIGNMENT = 32
LLAMA_HEAD_SIZES = (32, 64)
LLAMA_ASPECT = (24, 128)  # width over depth: SmolLM2-135M has 19, GPT-2 64, Llama-3.2-1B and Llama-3-8B 128
STEP = 16
HEAD_SIZES = (16, 32, 64)  # DeiT has 64; narrower models have narrower heads
ASPECT = (12, 64)  # width over depth: 16 in DeiT-Ti, 32 in DeiT-S, 64 in DeiT-B
FFN = 4  # feed-forward width over model width


def widths_and_depths(spec: SpaceSpec, *, step: int, aspect: tuple[float, float]) -> Iterator[tuple[int, int]]:
    """Widths and depths of reference designs, up to 1.5 times the space's largest width and depth.

    Args:
        spec: The space.
        step: Widths are multiples of this.
        aspect: Smallest and largest ratio of width to depth.
    """
    for d_model in range(step, int(max(spec.d_model) * 1.5) + 1, step):
        for depth in range(1, int(max(spec.depth) * 1.5) + 1):
            if aspect[0] <= d_model / depth <= aspect[1]:
                yield d_model, depth


def alike(layer: Mapping[str, object], d_model: int, depth: int, head_size: int, weights: str) -> dict[str, Any]:
    """Choices of a design whose layers all equal ``layer`` and share no weights; the head is not tied."""
    return {
        "d_model": d_model,
        "depth": depth,
        "head_size": head_size,
        "tie_embeddings": False,
        "weights": weights,
        "sharing": "none",
        "layers": [layer] * depth,
    }


def llama_proportions(spec: SpaceSpec, *, aspect: tuple[float, float] = LLAMA_ASPECT) -> Iterator[dict[str, Any]]:
    """Yields decoders with Llama's proportions, each as a mapping of choices to values.

    They have pre-norm RMSNorm, SwiGLU of 8/3 the width, rotary grouped-query attention, a tied table, equal layers, and
    dimensions that are multiples of the kernels' tiles. Width, depth, KV heads, vocabulary and format vary; width and
    depth are up to 1.5 times the space's largest.

    Args:
        spec: The space.
        aspect: Smallest and largest ratio of width to depth.
    """
    for weights, vocab_size in itertools.product(spec.formats, spec.vocab_size):
        for d_model, depth in widths_and_depths(spec, step=ALIGNMENT, aspect=aspect):
            for head_size in LLAMA_HEAD_SIZES:
                heads = d_model // head_size
                if d_model % head_size or heads < 2:
                    continue
                ffn = {"ffn": "swiglu", "ffn_width": max(ALIGNMENT, round(d_model * 8 / 3 / ALIGNMENT) * ALIGNMENT)}
                for kv_heads in {heads, max(1, heads // 2), max(1, heads // 4)}:
                    if heads % kv_heads == 0:
                        layer = {"heads": heads, "kv_heads": kv_heads, **ffn}
                        own = {"vocab_size": vocab_size, "tie_embeddings": True}
                        yield alike(layer, d_model, depth, head_size, weights) | own


def deit_proportions(
    spec: SpaceSpec, *, aspect: tuple[int, int] = ASPECT, head_sizes: Sequence[int] = HEAD_SIZES
) -> Iterator[dict[str, Any]]:
    """Yields classifiers with DeiT's proportions, each as a mapping of choices to values.

    They have plain patches, a class token, LayerNorm, global attention whose heads together are as wide as the model,
    and a GELU feed-forward of four times the width. Patch, width, depth, heads and format vary; width and depth are up
    to 1.5 times the space's largest.

    Args:
        spec: The space.
        aspect: Smallest and largest ratio of width to depth.
        head_sizes: Head sizes to try, in this order.
    """
    image = inputs_of(spec, ImageSpace)
    for weights, patch in itertools.product(spec.formats, image.patch):
        own = {"vocab_size": image.classes, "patch": patch, "stem": PATCHES, "pooling": "first", "positions": LEARNED}
        for d_model, depth in widths_and_depths(spec, step=STEP, aspect=aspect):
            for head_size in head_sizes:
                if d_model % head_size == 0:
                    layer = {"square": EVERYWHERE, **full_heads(d_model, head_size), "ffn": "gelu"}
                    yield alike(layer, d_model, depth, head_size, weights) | own


def full_heads(d_model: int, head_size: int) -> dict[str, object]:
    """Choices of a layer whose heads together are as wide as the model, with a feed-forward of 4 times the width."""
    heads = d_model // head_size
    return {"heads": heads, "kv_heads": heads, "ffn_width": FFN * d_model}

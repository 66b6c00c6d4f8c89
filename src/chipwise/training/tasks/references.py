"""Reference designs in the proportions that several tasks start from: Llama's decoders and DeiT's classifiers.

References:
    Touvron et al. 2021, Training data-efficient image transformers, arXiv:2012.12877, table 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chipwise.model.kinds.image.choices import EVERYWHERE, LEARNED, PATCHES
from chipwise.model.space.space_spec import SpaceSpec

ALIGNMENT = 32
LLAMA_HEAD_SIZES = (32, 64)
LLAMA_ASPECT = (24, 128)  # width over depth: SmolLM2-135M has 19, GPT-2 64, Llama-3.2-1B and Llama-3-8B 128
STEP = 16
HEAD_SIZES = (16, 32, 64)  # DeiT has 64; narrower models have narrower heads
ASPECT = (12, 64)  # width over depth: 16 in DeiT-Ti, 32 in DeiT-S, 64 in DeiT-B
FFN = 4  # widths of the model


def llama_proportions(spec: SpaceSpec, *, aspect: tuple[float, float] = LLAMA_ASPECT) -> Iterator[dict[str, Any]]:
    """Llama-proportioned decoders around a space, as choices; up to half as wide and deep again as its largest.

    Pre-norm RMSNorm, SwiGLU of 8/3 the width, rotary grouped-query attention, tied table, equal layers, and dimensions
    that are multiples of the kernels' tiles. Width, depth, KV heads, vocabulary and format vary.

    Args:
        spec: The space.
        aspect: The least and greatest width over depth.
    """
    for weights in spec.formats:
        for vocab_size in spec.vocab_size:
            for d_model in range(64, int(max(spec.d_model) * 1.5) + 1, ALIGNMENT):
                for depth in range(1, int(max(spec.depth) * 1.5) + 1):
                    if not aspect[0] <= d_model / depth <= aspect[1]:
                        continue
                    for head_size in LLAMA_HEAD_SIZES:
                        heads = d_model // head_size
                        if d_model % head_size or heads < 2:
                            continue
                        for kv_heads in {heads, max(1, heads // 2), max(1, heads // 4)}:
                            if heads % kv_heads:
                                continue
                            layer = {
                                "heads": heads,
                                "kv_heads": kv_heads,
                                "ffn": "swiglu",
                                "ffn_width": max(ALIGNMENT, round(d_model * 8 / 3 / ALIGNMENT) * ALIGNMENT),
                            }
                            yield {
                                "d_model": d_model,
                                "depth": depth,
                                "vocab_size": vocab_size,
                                "head_size": head_size,
                                "tie_embeddings": True,
                                "weights": weights,
                                "sharing": "none",
                                "layers": [layer] * depth,
                            }


def deit_proportions(
    spec: SpaceSpec, *, aspect: tuple[int, int] = ASPECT, head_sizes: Sequence[int] = HEAD_SIZES
) -> Iterator[dict[str, Any]]:
    """DeiT-proportioned classifiers around a space, as choices; up to half as wide and deep again as its largest.

    Plain patches, a class token, LayerNorm, global attention whose heads together are as wide as the model, and a GELU
    feed-forward of four times the width. Patch, width, depth, heads and format vary.

    Args:
        spec: The space.
        aspect: Least and largest width over depth.
        head_sizes: To try, in this order.
    """
    assert spec.image is not None
    for weights in spec.formats:
        for patch in spec.image.patch:
            for d_model in range(STEP, int(max(spec.d_model) * 1.5) + 1, STEP):
                for depth in range(1, int(max(spec.depth) * 1.5) + 1):
                    if not aspect[0] <= d_model / depth <= aspect[1]:
                        continue
                    for head_size in head_sizes:
                        if d_model % head_size:
                            continue
                        heads = d_model // head_size
                        layer = {
                            "heads": heads,
                            "kv_heads": heads,
                            "square": EVERYWHERE,
                            "ffn": "gelu",
                            "ffn_width": FFN * d_model,
                        }
                        yield {
                            "d_model": d_model,
                            "depth": depth,
                            "vocab_size": spec.image.classes,
                            "head_size": head_size,
                            "tie_embeddings": False,
                            "weights": weights,
                            "sharing": "none",
                            "patch": patch,
                            "stem": PATCHES,
                            "pooling": "first",
                            "positions": LEARNED,
                            "layers": [layer] * depth,
                        }

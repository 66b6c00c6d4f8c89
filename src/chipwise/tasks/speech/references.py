"""Reference designs of keyword spotting: the proportions of the Keyword Transformer.

Plain slices of time, a class token, LayerNorm, attention over the whole clip whose heads together are as wide as the
model, and a GELU feed-forward of four times the width. Slice, width, depth, heads and format vary.

References:
    Berg et al. 2021, Keyword Transformer, arXiv:2104.00769, table 1: widths of 64, 128 and 192, 12 layers, heads of 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chipwise.space import SpaceSpec
from chipwise.space.images import EVERYWHERE, PATCHES

STEP = 16
HEAD_SIZES = (16, 32, 64)  # KWT has 64; narrower models have narrower heads
ASPECT = (5, 32)  # width over depth: 5.3 in KWT-1, 10.7 in KWT-2, 16 in KWT-3; shallower ones up to twice that
FFN = 4  # widths of the model


def proportions(spec: SpaceSpec) -> Iterator[dict[str, Any]]:
    """KWT-proportioned designs around a space, as choices; up to half as wide and deep again as its largest."""
    assert spec.image is not None
    for weights in spec.formats:
        for patch in spec.image.patch:
            for d_model in range(STEP, int(max(spec.d_model) * 1.5) + 1, STEP):
                for depth in range(1, int(max(spec.depth) * 1.5) + 1):
                    if not ASPECT[0] <= d_model / depth <= ASPECT[1]:
                        continue
                    for heads in sorted({d_model // size for size in HEAD_SIZES if d_model % size == 0}):
                        layer = {"heads": heads, "kv_heads": heads, "ffn": "gelu", "ffn_width": FFN * d_model}
                        yield {
                            "d_model": d_model,
                            "depth": depth,
                            "vocab_size": spec.image.classes,
                            "head_size": d_model // heads,
                            "tie_embeddings": False,
                            "weights": weights,
                            "sharing": "none",
                            "patch": patch,
                            "stem": PATCHES,
                            "pooling": "first",
                            "square": EVERYWHERE,
                            "layers": [layer] * depth,
                        }

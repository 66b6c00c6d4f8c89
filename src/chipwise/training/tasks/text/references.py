"""Reference designs of text models: Llama-proportioned decoders.

Pre-norm RMSNorm, SwiGLU of 8/3 the width, rotary grouped-query attention, tied table, equal layers, and dimensions that
are multiples of the kernels' tiles. Width, depth, KV heads, vocabulary and format vary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chipwise.model.space.space_spec import SpaceSpec

ALIGNMENT = 32
HEAD_SIZES = (32, 64)
ASPECT = (24, 128)  # width over depth: SmolLM2-135M has 19, GPT-2 64, Llama-3.2-1B and Llama-3-8B 128


def proportions(spec: SpaceSpec, *, aspect: tuple[float, float] = ASPECT) -> Iterator[dict[str, Any]]:
    """Llama-proportioned designs around a space, as choices; up to half as wide and deep again as its largest.

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
                    for head_size in HEAD_SIZES:
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

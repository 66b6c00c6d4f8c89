"""Reference designs of keyword spotting, with the proportions of the Keyword Transformer (KWT).

The designs have non-overlapping patches in time, a class token, LayerNorm, attention over the whole clip, and a GELU
feed-forward of four times the width. The heads together are as wide as the model. Patch, width, depth, heads and format
vary.

References:
    Berg et al. 2021, Keyword Transformer, arXiv:2104.00769, table 1: widths of 64, 128 and 192, 12 layers, heads of 64.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.references import deit_proportions

HEAD_SIZES = (64, 32, 16)  # KWT has 64; narrower models have narrower heads
ASPECT = (5, 32)  # width over depth: 5.3 in KWT-1, 10.7 in KWT-2, 16 in KWT-3; shallower designs up to 32


def proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields designs as mappings of choices to values: DeiT's blocks with KWT's aspect ratio and head sizes."""
    return deit_proportions(spec, aspect=ASPECT, head_sizes=HEAD_SIZES)

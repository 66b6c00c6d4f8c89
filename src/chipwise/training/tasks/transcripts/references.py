"""Reference designs of transcription, with the proportions of Whisper's encoder and Conformer.

Whisper's designs have frames subsampled by 2, LayerNorm, attention over the whole sound, and a GELU feed-forward of
four times the width. The heads together are as wide as the model. Conformer's have frames subsampled by 4, a
convolution module with kernel size 31 in every layer, heads as in Whisper's designs, and one SiLU feed-forward of four
times the width (the published design has two, each with half weight). Width, depth, heads and format vary.

References:
    Radford et al. 2022 (Whisper), arXiv:2212.04356, table 1: 4 layers of width 384 (tiny) to 32 of 1,280 (large), heads
        of 64.
    Gulati et al. 2020 (Conformer), arXiv:2005.08100, table 1: 16 layers of width 144 (S), 16 of 256 (M) and 17 of 512
        (L), 4 or 8 heads, kernels of 32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from chipwise.model.kinds.sound.choices import NO_MODULE, SoundSpace
from chipwise.model.kinds.sound.form import GLOBAL
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.one_pass import inputs_of
from chipwise.training.tasks.references import STEP, alike, full_heads, widths_and_depths

HEAD_SIZES = (64, 32, 16)  # narrower models have narrower heads


@dataclass(frozen=True, slots=True)
class Proportions:
    """Values that all designs of one published family have in common."""

    stride: int
    module: str
    ffn: str
    aspect: tuple[float, float]  # smallest and largest ratio of width to depth


PUBLISHED = (
    Proportions(2, NO_MODULE, "gelu", (32, 128)),  # Whisper: 96 in tiny, 85 in base, 64 in small, 40 in large
    Proportions(4, "conv31", "silu", (9, 48)),  # Conformer: 9 in S, 16 in M, 30 in L; shallower ones up to 48
)


def proportions(spec: SpaceSpec) -> Iterator[dict[str, object]]:
    """Yields designs as mappings of choices to values; width and depth are up to 1.5 times the space's largest."""
    classes = inputs_of(spec, SoundSpace).classes
    for weights, known in itertools.product(spec.formats, PUBLISHED):
        own = {"vocab_size": classes, "stride": known.stride, "window": GLOBAL, "module": known.module}
        for d_model, depth in widths_and_depths(spec, step=STEP, aspect=known.aspect):
            for head_size in HEAD_SIZES:
                if d_model % head_size == 0:
                    layer = {**full_heads(d_model, head_size), "ffn": known.ffn}
                    yield alike(layer, d_model, depth, head_size, weights) | own

"""Projectors, which turn the states of an image or audio tower into tokens of a decoder.

A tower is an ArchSpec whose head is a projector; the decoder lists its towers. Each model has its own rule for the
number of tokens per image, see ``image_tokens.py``.

References:
    Two matrices with a GELU: Liu et al. 2023, Improved Baselines with Visual Instruction Tuning, arXiv:2310.03744.
    Neighbours joined before them: Wang et al. 2024 (Qwen2-VL), arXiv:2409.12191; Chen et al. 2024 (InternVL 1.5),
        arXiv:2404.16821. Averaged: Gemma team 2025, arXiv:2503.19786.
    States of intermediate tower layers for the decoder's first layers: Qwen team 2025, Qwen3-VL, arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import Activation
from chipwise.model.arch.trunk import Head, Stem, Trunk

Tiling = Literal["whole", "native", "longest", "ratio", "canvas", "pinpoints", "seconds", "windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector(Head):
    """Turns a tower's positions into tokens of the decoder: averages or joins neighbours, then applies matrices.

    ``tiling`` is the rule that divides an image into passes of the tower. Except for ``whole``, ``native`` and the
    rules for sound, one more pass reads the whole image at the tower's size:

    - ``whole``: resized to the tower's size, one pass.
    - ``native``: one pass at the image's own size, within ``least_pixels`` and ``most_pixels`` (Qwen-VL).
    - ``longest``: its longest side is enlarged to ``longest`` pixels, then it is cut into tiles (Idefics 3, SmolVLM).
    - ``ratio``: the grid of at most ``tiles`` tiles whose aspect ratio is nearest to the image's (InternVL).
    - ``canvas``: the grid of at most ``tiles`` tiles in which the image is largest (Llama 4).
    - ``pinpoints``: the best of the sizes ``pinpoints``, cut into tiles, without tokens of the padding (LLaVA-NeXT). If
      ``tiles`` is not 1, the number of tokens is at most that of so many tiles (LLaVA-OneVision).
    - ``seconds``: for sound, one window, with tokens only for the actual seconds (Qwen2-Audio).
    - ``windows``: for sound, as many full windows as needed, each with all its tokens (Voxtral).
    """

    name: ClassVar[str] = "none"
    widths: tuple[int, ...]  # columns of each matrix; the last is the decoder's width
    bias: bool = True
    activation: Activation = "gelu"  # between the matrices
    pool: int = 1  # average pooling: positions per side that become one
    join: int = 1  # after pooling: positions per side whose values are concatenated
    norm: Literal["none", "layernorm", "rmsnorm"] = "none"  # before the matrices
    norm_joined: bool = False  # whether the norm is over the joined values
    deeper: int = 0  # further projectors, for the decoder's first layers (Qwen3-VL); normed over joined values
    vectors: int = 0  # learned vectors of the decoder's width, such as a newline token
    unused_layers: int = 0  # trailing layers of the tower whose results are unused
    tiling: Tiling = "whole"
    tiles: int = 1
    marks: int = 0  # marker tokens at the beginning and end of an image
    tile_marks: int = 0  # further marker tokens per tile
    longest: int = 0
    least_pixels: int = 0
    most_pixels: int = 0
    pinpoints: tuple[tuple[int, ...], ...] = ()  # heights and widths

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "pool", "join", "tiles")
        if not self.widths or min(self.widths) < 1:
            raise SpecError("must name the columns of at least one matrix", field="widths")
        for name in (
            "deeper",
            "vectors",
            "unused_layers",
            "marks",
            "tile_marks",
            "longest",
            "least_pixels",
            "most_pixels",
        ):
            if getattr(self, name) < 0:
                raise SpecError(f"must be at least 0, not {getattr(self, name)}", field=name)
        needed = {"longest": "longest", "native": "most_pixels", "pinpoints": "pinpoints"}.get(self.tiling)
        if needed and not getattr(self, needed):
            raise SpecError(f"tiling {self.tiling} needs a value other than 0", field=needed)
        if any(len(pair) != 2 for pair in self.pinpoints):
            raise SpecError("must be pairs of a height and a width", field="pinpoints")

    def tokens_of(self, grid: int, axes: int) -> int:
        """Tokens from ``grid`` positions on each side."""
        return int((grid // self.pool // self.join) ** axes)

    def joined_width(self, d_model: int, axes: int) -> int:
        """Inputs of the first matrix after a tower of width ``d_model``."""
        return int(d_model * self.join**axes)

    def shapes(self, d_model: int, axes: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix."""
        return tuple(pairwise((self.joined_width(d_model, axes), *self.widths)))

    def norm_width(self, d_model: int, axes: int) -> int:
        """Number of values that the norm is over."""
        return self.joined_width(d_model, axes) if self.norm_joined else d_model

    @property
    def token_width(self) -> int:
        """Values per token."""
        return self.widths[-1]

    def of_token_width(self, width: int) -> Projector:
        """A copy that makes tokens of ``width`` values."""
        return replace(self, widths=(*self.widths[:-1], width))

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """As :meth:`shapes`, for this tower."""
        return self.shapes(trunk.d_model, stem.axes)

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters of the biases."""
        return sum(self.widths) * self.bias

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """As :meth:`parameters_of`, for this tower."""
        return self.parameters_of(trunk.d_model, stem.axes)

    def parameters_of(self, d_model: int, axes: int) -> int:
        """Parameters of norms, matrices, biases and vectors after a tower of width ``d_model``."""
        matrices = sum((into + self.bias) * out for into, out in self.shapes(d_model, axes))
        each = {"none": 0, "rmsnorm": 1, "layernorm": 2}[self.norm]
        joined = each * self.joined_width(d_model, axes)
        norms = each * self.norm_width(d_model, axes) + self.deeper * joined
        return (1 + self.deeper) * matrices + norms + self.vectors * self.widths[-1]

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the model is a tower."""
        if stem.vocab_size:
            raise SpecError("only a tower has one: a stem, no head, no towers of its own", field="projector")

    def record(self) -> Mapping[str, object]:
        """Record of the projector, in place of a head."""
        return {"head": self.name, "projector": self}

"""Projectors, which turn the states of an image or audio tower into tokens of a decoder.

A tower is an ArchSpec whose head is a projector; the decoder lists its towers. Each model family has its own rule for
the number of tokens per image, see ``image_tokens.py``.

References:
    Two matrices with a GELU: Liu et al. 2023, Improved Baselines with Visual Instruction Tuning, arXiv:2310.03744.
    Neighbours joined before the matrices: Wang et al. 2024 (Qwen2-VL), arXiv:2409.12191; Chen et al. 2024
        (InternVL 1.5), arXiv:2404.16821. Neighbours averaged: Gemma team 2025, arXiv:2503.19786.
    States of intermediate tower layers for the decoder's first layers: Qwen team 2025, Qwen3-VL, arXiv:2511.21631.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, not_negative, positive
from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import Activation
from chipwise.model.arch.trunk import Head, Stem, Trunk

Tiling = Literal["whole", "native", "longest", "ratio", "canvas", "pinpoints", "seconds", "windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector(Head):
    """Turns a tower's positions into tokens of the decoder: averages or joins neighbours, then applies matrices.

    ``tiling`` is the rule by which the tower reads an image or a sound in one or more passes. If a rule cuts an image
    into several tiles, one more pass reads the whole image at the tower's size. The rules are:

    - ``whole``: the image is resized to the tower's size; one pass.
    - ``native``: one pass at the image's own size, between ``least_pixels`` and ``most_pixels`` (Qwen-VL).
    - ``longest``: the image is resized so that its longest side has ``longest`` pixels, then cut into tiles (SmolVLM).
    - ``ratio``: the grid of at most ``tiles`` tiles whose aspect ratio is nearest to the image's (InternVL).
    - ``canvas``: the grid of at most ``tiles`` tiles that enlarges the image least or, if all grids shrink the image,
      shrinks it least (Llama 4).
    - ``pinpoints``: the image is resized to one of the sizes ``pinpoints`` and cut into tiles; padding gets no tokens
      (LLaVA-NeXT). Of these sizes, the one that loses the fewest pixels is used; if several do, the one with the least
      padding. If ``tiles`` is above 1, a grid of tokens that exceeds the size of ``tiles`` tiles by more than 10 % per
      side is shrunk to that size (LLaVA-OneVision).
    - ``seconds``, for sound: one window, with tokens only for the actual length of the sound (Qwen2-Audio).
    - ``windows``, for sound: as many full windows as needed, each with all its tokens (Voxtral).
    """

    name: ClassVar[str] = "none"
    widths: tuple[int, ...]  # columns of each matrix; the last is the decoder's width
    bias: bool = True
    activation: Activation = "gelu"  # between the matrices
    pool: int = 1  # average pooling: positions per side that are averaged into one
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
    pinpoints: tuple[tuple[int, ...], ...] = ()  # pairs of height and width

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "pool", "join", "tiles")
        if not self.widths or min(self.widths) < 1:
            raise SpecError("must list the output width of at least one matrix", field="widths")
        not_negative(self, "deeper", "vectors", "unused_layers", "marks", "tile_marks")
        not_negative(self, "longest", "least_pixels", "most_pixels")
        needed = {"longest": "longest", "native": "most_pixels", "pinpoints": "pinpoints"}.get(self.tiling)
        if needed and not getattr(self, needed):
            raise SpecError(f"must be set, because tiling is {self.tiling}", field=needed)
        if any(len(pair) != 2 for pair in self.pinpoints):
            raise SpecError("must be a list of pairs (height, width)", field="pinpoints")

    def tokens_of(self, grid: int, axes: int) -> int:
        """Number of tokens from a grid with ``grid`` positions on each side."""
        return int((grid // self.pool // self.join) ** axes)

    def joined_width(self, d_model: int, axes: int) -> int:
        """Input width of the first matrix, after a tower of width ``d_model``."""
        return int(d_model * self.join**axes)

    def shapes(self, d_model: int, axes: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of each matrix, after a tower of width ``d_model``."""
        return tuple(pairwise((self.joined_width(d_model, axes), *self.widths)))

    def norm_width(self, d_model: int, axes: int) -> int:
        """Number of values that the norm covers."""
        return self.joined_width(d_model, axes) if self.norm_joined else d_model

    @property
    def token_width(self) -> int:
        """Width of the tokens that the projector makes."""
        return self.widths[-1]

    def of_token_width(self, width: int) -> Projector:
        """A copy that makes tokens of ``width`` values."""
        return replace(self, widths=(*self.widths[:-1], width))

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """Input and output width of each matrix in this tower's projector."""
        return self.shapes(trunk.d_model, stem.axes)

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the biases."""
        return sum(self.widths) * self.bias

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of this tower's projector."""
        return self.parameters_of(trunk.d_model, stem.axes)

    def parameters_of(self, d_model: int, axes: int) -> int:
        """Number of parameters (norms, matrices, biases, vectors) after a tower of width ``d_model``."""
        matrices = sum((into + self.bias) * out for into, out in self.shapes(d_model, axes))
        each = {"none": 0, "rmsnorm": 1, "layernorm": 2}[self.norm]
        joined = each * self.joined_width(d_model, axes)
        norms = each * self.norm_width(d_model, axes) + self.deeper * joined
        return (1 + self.deeper) * matrices + norms + self.vectors * self.widths[-1]

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the stem reads images or sound, because only towers have projectors."""
        if stem.vocab_size:
            raise SpecError("only a tower for images or sound has a projector", field="projector")

    def record(self) -> Mapping[str, object]:
        """The stored fields: the projector, and ``none`` as the head."""
        return {"head": self.name, "projector": self}

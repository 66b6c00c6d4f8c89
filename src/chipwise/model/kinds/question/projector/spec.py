"""Projectors: how what a tower has read of an image, or of sound, becomes tokens of the decoder behind it.

A tower is an ArchSpec whose head is a projector; the decoder lists its towers. How many tokens an image becomes
follows from the model's own rule, see ``image_tokens.py``.

References:
    Two matrices with a GELU: Liu et al. 2023, Improved Baselines with Visual Instruction Tuning, arXiv:2310.03744.
    Neighbours joined before them: Wang et al. 2024 (Qwen2-VL), arXiv:2409.12191; Chen et al. 2024 (InternVL 1.5),
        arXiv:2404.16821. Averaged: Gemma team 2025, arXiv:2503.19786.
    Deeper states of the tower given to the decoder's first layers: Qwen team 2025, Qwen3-VL, arXiv:2511.21631.
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
    """From a tower's positions to the decoder's tokens: averaged or joined with neighbours, then matrices in turn.

    ``tiling`` is the rule by which an image becomes passes of the tower:

    - ``whole``: resized to the tower's size, one pass.
    - ``native``: as large as it is, within ``least_pixels`` and ``most_pixels``, in one pass (Qwen-VL).
    - ``longest``: its longest side enlarged to ``longest`` pixels, cut into tiles, and the whole (Idefics 3, SmolVLM).
    - ``ratio``: the grid of at most ``tiles`` tiles nearest to its shape, and the whole (InternVL).
    - ``canvas``: the grid of at most ``tiles`` tiles in which it is largest, and the whole (Llama 4).
    - ``pinpoints``: the best of the sizes ``pinpoints``, cut into tiles without the margins, and the whole
      (LLaVA-NeXT); ``tiles``, where it is not 1, bounds the tokens to so many tiles' worth (LLaVA-OneVision).
    - ``seconds``: of sound, one window with tokens for as much as is heard (Qwen2-Audio).
    - ``windows``: of sound, as many whole windows as it takes, all with their tokens (Voxtral).
    """

    name: ClassVar[str] = "none"
    widths: tuple[int, ...]  # columns of each matrix; the last is the decoder's width
    bias: bool = True
    activation: Activation = "gelu"  # between the matrices
    pool: int = 1  # positions on each side averaged into one
    join: int = 1  # positions on each side joined into one of all their values, after pooling
    norm: Literal["none", "layernorm", "rmsnorm"] = "none"  # before the matrices
    norm_joined: bool = False  # the norm is over the joined values
    deeper: int = 0  # more of them, with the norm over joined values, for states that the decoder's first layers get
    vectors: int = 0  # of the decoder's width, learned: an image's newline
    unused_layers: int = 0  # last layers of the tower that nothing reads
    tiling: Tiling = "whole"
    tiles: int = 1
    marks: int = 0  # tokens around an image that say where it begins and ends
    tile_marks: int = 0  # more of them for each tile
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
            raise SpecError(f"tiling {self.tiling} needs it", field=needed)
        if any(len(pair) != 2 for pair in self.pinpoints):
            raise SpecError("must be pairs of a height and a width", field="pinpoints")

    def tokens_of(self, grid: int, axes: int) -> int:
        """Tokens that become of ``grid`` positions on each side."""
        return int((grid // self.pool // self.join) ** axes)

    def joined_width(self, d_model: int, axes: int) -> int:
        """Values of what the first matrix takes, behind a tower of width ``d_model``."""
        return int(d_model * self.join**axes)

    def shapes(self, d_model: int, axes: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix."""
        return tuple(pairwise((self.joined_width(d_model, axes), *self.widths)))

    def norm_width(self, d_model: int, axes: int) -> int:
        """Values that the norm divides at once."""
        return self.joined_width(d_model, axes) if self.norm_joined else d_model

    @property
    def token_width(self) -> int:
        """Values of each token."""
        return self.widths[-1]

    def of_token_width(self, width: int) -> Projector:
        """The projector into tokens of ``width`` values."""
        return replace(self, widths=(*self.widths[:-1], width))

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """As :meth:`shapes`, behind the tower."""
        return self.shapes(trunk.d_model, stem.axes)

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The biases."""
        return sum(self.widths) * self.bias

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """As :meth:`parameters_of`, behind the tower."""
        return self.parameters_of(trunk.d_model, stem.axes)

    def parameters_of(self, d_model: int, axes: int) -> int:
        """Norms, matrices with biases, and vectors, behind positions of ``d_model`` values."""
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
        """The projector, in place of a head."""
        return {"head": self.name, "projector": self}


def projector_of(head: Head) -> Projector | None:
    """The projector of a tower; None where ``head`` is another."""
    return head if isinstance(head, Projector) else None

"""Denoisers: transformers that turn noise into images in steps, given the time and a label.

The inputs are an image, a time from 0 (noise) to 1 (image) and a label; the output is how the image moves (its
velocity), one value for each of the input's. What was told becomes one vector; from it a matrix makes, for each block,
a shift, a scale and a gate (adaLN-zero), and for the last norm a shift and a scale.

References:
    Peebles and Xie 2023, Scalable Diffusion Models with Transformers (DiT), arXiv:2212.09748, section 3.2.
    Straight paths from noise to images: Liu et al. 2023, Flow Straight and Fast (rectified flow), arXiv:2209.03003.
    Guidance without a classifier: Ho and Salimans 2022, Classifier-Free Diffusion Guidance, arXiv:2207.12598.
    Steps that use the velocity before: Adams and Bashforth's method of second order for steps of any size, as Hairer,
        Nørsett and Wanner, Solving Ordinary Differential Equations I, section III.5, has it.
    Shifted times: Esser et al. 2024 (Stable Diffusion 3), arXiv:2403.03206, equation 23.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from chipwise.core.fields import check_fields, later, positive
from chipwise.errors import SpecError
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.trunk import Head, Stem, Trunk
from chipwise.model.kinds.denoiser.latents.spec import Latents
from chipwise.model.kinds.image.stem import ImageStem

BLOCK_PARTS, END_PARTS = 3, 2  # vectors that each block is given (shift, scale, gate), and the last norm (shift, scale)
MOST_STEPS = 1_000
UNGUIDED, MOST_GUIDANCE = 1.0, 100.0
UNSHIFTED, MOST_SHIFT = 1.0, 100.0
Solver = Literal["euler", "multistep"]
NO_SHORTCUTS = "shortcut training is no longer part of chipwise; search again with `training: [flow]`"


@dataclass(frozen=True, slots=True)
class Move:
    """One step of an image: it moves by ``now`` times its velocity and ``before`` times the one of the last step."""

    time: float  # from 0 (noise) to 1 (image)
    size: float
    now: float
    before: float


def moves(steps: int, solver: Solver = "euler", shift: float = UNSHIFTED) -> tuple[Move, ...]:
    """The steps from time 0 to time 1. A ``shift`` s takes time u to u / (u + s (1 - u)): smaller steps at first.

    >>> [move.time for move in moves(2, shift=3.0)]
    [0.0, 0.25]
    >>> moves(2, "multistep")[1]
    Move(time=0.5, size=0.5, now=0.75, before=-0.25)
    """
    even = [i / steps for i in range(steps + 1)]
    times = [u / (u + shift * (1 - u)) for u in even]
    found: list[Move] = []
    for time, end in itertools.pairwise(times):
        size = end - time
        ahead = size / found[-1].size / 2 if found and solver == "multistep" else 0.0
        found.append(Move(time, size, size * (1 + ahead), -size * ahead))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoiser(Head):
    """Makes an image's velocity of what the layers leave, and modulates their blocks; with the number of steps."""

    name: ClassVar[str] = "none"
    labels: int  # rows of the table of labels
    frequencies: int = 256  # values that a time is written in, before two matrices read it
    steps: int = 8  # in which an image is made; training does not depend on them
    shortcut: bool = False  # part of every denoiser's identity; models that were trained so are refused
    guidance: float = later(UNGUIDED)  # how many times as far as without a label a step goes towards its label
    latents: Latents | None = later(None)  # noqa: RUF009  (images are decoded of them at the end; None: pixels)
    solver: Solver = later("euler")  # noqa: RUF009  (multistep: a step also goes by how the velocity changed)
    shift: float = later(UNSHIFTED)  # of times; more than 1: smaller steps in the noise, larger ones in the image
    outputs: int = 1  # tensors as large as the image that a pass gives; DiT gives a variance too

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "labels", "frequencies", "outputs")
        positive(self, "steps", most=MOST_STEPS)
        if self.shortcut:
            raise SpecError(NO_SHORTCUTS, field="shortcut")
        if not UNGUIDED <= self.guidance <= MOST_GUIDANCE:
            raise SpecError(f"is from 1 (none) to {MOST_GUIDANCE:g}, not {self.guidance:g}", field="guidance")
        if not 1 / MOST_SHIFT <= self.shift <= MOST_SHIFT:
            raise SpecError(f"is from {1 / MOST_SHIFT:g} to {MOST_SHIFT:g}, not {self.shift:g}", field="shift")

    @property
    def guided(self) -> bool:
        """Whether each step uses classifier-free guidance (two passes)."""
        return self.guidance != UNGUIDED

    @property
    def rows(self) -> int:
        """Rows of the label table: a guided model has one more, the last, for no label."""
        return self.labels + self.guided

    @property
    def passes(self) -> int:
        """Passes that make an image."""
        return self.steps * (1 + self.guided)

    def moves(self) -> tuple[Move, ...]:
        """The steps of an image."""
        return moves(self.steps, self.solver, self.shift)

    def values(self, stem: ImageStem) -> int:
        """Values of a patch in the output."""
        return self.outputs * int(stem.patch**stem.axes) * stem.channels

    def modulation_width(self, trunk: Trunk, layer: Layer) -> int:
        """Values that shift, scale and gate the blocks of ``layer``."""
        return BLOCK_PARTS * trunk.d_model * len(tuple(layer.blocks()))

    def as_trained(self) -> Self:
        """The denoiser with one step, and guidance 2 if any: steps, solver and shift do not affect training."""
        return replace(self, steps=1, guidance=2.0 if self.guided else self.guidance, solver="euler", shift=UNSHIFTED)

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """The matrix that modulates all blocks and the end, and the one back to pixels."""
        end = END_PARTS * trunk.d_model
        return (trunk.d_model, self._blocks_width(trunk) + end), (trunk.d_model, self.values(_patches(stem)))

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """All but these two matrices."""
        inside = sum(into * outputs for into, outputs in self.matrices(trunk, stem))
        return self.parameters(trunk, stem) + self._blocks_width(trunk) * (trunk.d_model + 1) - inside

    def _blocks_width(self, trunk: Trunk) -> int:
        return sum(self.modulation_width(trunk, layer) for layer in trunk.layers)

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The matrices that read times, the table of labels, the last modulation and the matrix back to pixels."""
        image, d_model = _patches(stem), trunk.d_model
        number = (self.frequencies + 1) * d_model + (d_model + 1) * d_model
        end = END_PARTS * d_model * (d_model + 1) + self.values(image) * (d_model + 1)
        decoder = 0 if self.latents is None else self.latents.parameters(image.channels)
        return number + self.rows * d_model + end + decoder

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that patches of an image are read, with nothing before them."""
        _patches(stem)

    def record(self) -> Mapping[str, object]:
        """The denoiser, in place of a head."""
        return {"head": self.name, "denoiser": self}


def _patches(stem: Stem) -> ImageStem:
    """``stem`` as a denoiser's."""
    if stem.vocab_size:
        raise SpecError("a denoiser reads images; give it a stem", field="denoiser")
    if not isinstance(stem, ImageStem) or stem.axes != 2 or stem.prefix_tokens or stem.convs:
        raise SpecError("a denoiser's stem is patches of an image, with no positions before them", field="stem")
    return stem

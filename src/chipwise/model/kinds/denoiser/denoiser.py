"""Denoisers: transformers that turn noise into images in steps, given the time and a label.

The inputs are an image, a time from 0 (noise) to 1 (image) and a label; the output is how the image moves (its
velocity), one value for each of the input's. What was told becomes one vector; from it a matrix makes, for each block,
a shift, a scale and a gate (adaLN-zero), and for the last norm a shift and a scale.

References:
    Peebles and Xie 2023, Scalable Diffusion Models with Transformers (DiT), arXiv:2212.09748, section 3.2.
    Straight paths from noise to images: Liu et al. 2023, Flow Straight and Fast (rectified flow), arXiv:2209.03003.
    Steps of any size in one model: Frans et al. 2024, One Step Diffusion via Shortcut Models, arXiv:2410.12557.
    Guidance without a classifier: Ho and Salimans 2022, Classifier-Free Diffusion Guidance, arXiv:2207.12598.
    Steps that use the velocity before: Adams and Bashforth's method of second order for steps of any size, as Hairer,
        Nørsett and Wanner, Solving Ordinary Differential Equations I, section III.5, has it.
    Shifted times: Esser et al. 2024 (Stable Diffusion 3), arXiv:2403.03206, equation 23.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from chipwise.core.fields import check_fields, later, positive
from chipwise.errors import SpecError
from chipwise.model.kinds.denoiser.latents.spec import Latents
from chipwise.model.kinds.image.stem import ImageStem

BLOCK_PARTS, END_PARTS = 3, 2  # vectors that each block is given (shift, scale, gate), and the last norm (shift, scale)
MOST_STEPS = 1_000
UNGUIDED, MOST_GUIDANCE = 1.0, 100.0
UNSHIFTED, MOST_SHIFT = 1.0, 100.0
Solver = Literal["euler", "multistep"]


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
class Denoiser:
    """Fields of a denoiser beyond stem and layers, with its number of steps."""

    labels: int  # rows of the table of labels
    frequencies: int = 256  # values that a time is written in, before two matrices read it
    steps: int = 8  # in which an image is made; training does not depend on them
    shortcut: bool = False  # told the size of its steps too, and taught that two small ones make a large one
    guidance: float = later(UNGUIDED)  # how many times as far as without a label a step goes towards its label
    latents: Latents | None = later(None)  # noqa: RUF009  (images are decoded of them at the end; None: pixels)
    solver: Solver = later("euler")  # noqa: RUF009  (multistep: a step also goes by how the velocity changed)
    shift: float = later(UNSHIFTED)  # of times; more than 1: smaller steps in the noise, larger ones in the image
    outputs: int = 1  # tensors as large as the image that a pass gives; DiT gives a variance too

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "labels", "frequencies", "outputs")
        positive(self, "steps", most=MOST_STEPS)
        if self.shortcut and self.steps & (self.steps - 1):
            raise SpecError(f"a model of shortcuts takes 1, 2, 4, 8 … steps, not {self.steps}", field="steps")
        if not UNGUIDED <= self.guidance <= MOST_GUIDANCE:
            raise SpecError(f"is from 1 (none) to {MOST_GUIDANCE:g}, not {self.guidance:g}", field="guidance")
        if self.shortcut and self.guided:
            raise SpecError("a model of shortcuts is not guided; leave one of them out", field="guidance")
        if not 1 / MOST_SHIFT <= self.shift <= MOST_SHIFT:
            raise SpecError(f"is from {1 / MOST_SHIFT:g} to {MOST_SHIFT:g}, not {self.shift:g}", field="shift")
        if self.shortcut and (self.solver != "euler" or self.shift != UNSHIFTED):
            raise SpecError("a model of shortcuts takes equal steps by themselves: euler, unshifted", field="solver")

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

    @property
    def told(self) -> tuple[str, ...]:
        """Inputs that are numbers: the time, and the size of the step."""
        return ("time", "step") if self.shortcut else ("time",)

    def values(self, stem: ImageStem) -> int:
        """Values of a patch in the output."""
        return self.outputs * int(stem.patch**stem.axes) * stem.channels

    def parameters(self, d_model: int, stem: ImageStem) -> int:
        """The matrices that read numbers, the table of labels, the last modulation and the matrix back to pixels."""
        number = (self.frequencies + 1) * d_model + (d_model + 1) * d_model
        end = END_PARTS * d_model * (d_model + 1) + self.values(stem) * (d_model + 1)
        decoder = 0 if self.latents is None else self.latents.parameters(stem.channels)
        return len(self.told) * number + self.rows * d_model + end + decoder

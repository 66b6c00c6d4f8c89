"""Denoisers: transformers that turn noise into images in several steps, given a time and a class label.

The inputs are an image, a time from 0 (noise) to 1 (image) and a label. The output is the image's velocity, one value
for each input value. Time and label are embedded into one vector; a matrix turns it into a shift, a scale and a gate
for each block (adaLN-zero), and a shift and a scale for the last norm.

References:
    Peebles and Xie 2023, Scalable Diffusion Models with Transformers (DiT), arXiv:2212.09748, section 3.2.
    Straight paths from noise to images: Liu et al. 2023, Flow Straight and Fast (rectified flow), arXiv:2209.03003.
    Classifier-free guidance: Ho and Salimans 2022, Classifier-Free Diffusion Guidance, arXiv:2207.12598.
    Steps that use the previous velocity: second-order Adams-Bashforth with variable step size, Hairer, Nørsett and
        Wanner, Solving Ordinary Differential Equations I, section III.5.
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

BLOCK_PARTS, END_PARTS = 3, 2  # vectors per block (shift, scale, gate) and for the last norm (shift, scale)
MOST_STEPS = 1_000
UNGUIDED, MOST_GUIDANCE = 1.0, 100.0
UNSHIFTED, MOST_SHIFT = 1.0, 100.0
Solver = Literal["euler", "multistep"]
NO_SHORTCUTS = "shortcut training is no longer part of chipwise; search again with `training: [flow]`"


@dataclass(frozen=True, slots=True)
class Move:
    """One denoising step. The image changes by ``now`` × velocity + ``before`` × velocity of the previous step."""

    time: float  # from 0 (noise) to 1 (image)
    size: float
    now: float
    before: float


def moves(steps: int, solver: Solver = "euler", shift: float = UNSHIFTED) -> tuple[Move, ...]:
    """The denoising steps from time 0 to time 1.

    A ``shift`` s maps time u to u / (u + s (1 - u)). Values above 1 make the first steps smaller.

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
    """A denoiser's head: modulates the layers' blocks and outputs the velocity. Also stores the sampler's settings."""

    name: ClassVar[str] = "none"
    labels: int  # number of labels
    frequencies: int = 256  # size of the sinusoidal embedding of a time, before two matrices
    steps: int = 8  # denoising steps per image; they do not affect training
    shortcut: bool = False  # kept because digests include it; True is rejected
    guidance: float = later(UNGUIDED)  # classifier-free guidance scale; 1 is none
    latents: Latents | None = later(None)  # noqa: RUF009  (images are decoded from them at the end; None: pixels)
    solver: Solver = later("euler")  # noqa: RUF009  (multistep: a step also uses the previous velocity)
    shift: float = later(UNSHIFTED)  # time shift; above 1: smaller steps near noise, larger ones near the image
    outputs: int = 1  # image-sized output tensors per pass; 2 in DiT, with a variance

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "labels", "frequencies", "outputs")
        positive(self, "steps", most=MOST_STEPS)
        if self.shortcut:
            raise SpecError(NO_SHORTCUTS, field="shortcut")
        if not UNGUIDED <= self.guidance <= MOST_GUIDANCE:
            raise SpecError(
                f"must be from 1 (no guidance) to {MOST_GUIDANCE:g}, not {self.guidance:g}", field="guidance"
            )
        if not 1 / MOST_SHIFT <= self.shift <= MOST_SHIFT:
            raise SpecError(f"must be from {1 / MOST_SHIFT:g} to {MOST_SHIFT:g}, not {self.shift:g}", field="shift")

    @property
    def guided(self) -> bool:
        """Whether each step uses classifier-free guidance (two passes)."""
        return self.guidance != UNGUIDED

    @property
    def rows(self) -> int:
        """Number of rows in the label table: one per label and, in guided models, one that means no label."""
        return self.labels + self.guided

    @property
    def passes(self) -> int:
        """Number of forward passes per image."""
        return self.steps * (1 + self.guided)

    def moves(self) -> tuple[Move, ...]:
        """The denoising steps of one image."""
        return moves(self.steps, self.solver, self.shift)

    def values(self, stem: ImageStem) -> int:
        """Number of output values per patch."""
        return self.outputs * int(stem.patch**stem.axes) * stem.channels

    def modulation_width(self, trunk: Trunk, layer: Layer) -> int:
        """Number of shift, scale and gate values for the blocks of ``layer``."""
        return BLOCK_PARTS * trunk.d_model * len(tuple(layer.blocks()))

    def as_trained(self) -> Self:
        """A copy in which steps, guidance scale, solver and shift, which do not affect training, have fixed values."""
        return replace(self, steps=1, guidance=2.0 if self.guided else self.guidance, solver="euler", shift=UNSHIFTED)

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """Input and output width of the modulation matrix and of the output matrix."""
        end = END_PARTS * trunk.d_model
        return (trunk.d_model, self._blocks_width(trunk) + end), (trunk.d_model, self.values(_patches(stem)))

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters outside the matrices that :meth:`matrices` lists."""
        inside = sum(into * outputs for into, outputs in self.matrices(trunk, stem))
        return self.parameters(trunk, stem) + self._blocks_width(trunk) * (trunk.d_model + 1) - inside

    def _blocks_width(self, trunk: Trunk) -> int:
        return sum(self.modulation_width(trunk, layer) for layer in trunk.layers)

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters: time embedding, label table, last modulation, output matrix and latent decoder."""
        image, d_model = _patches(stem), trunk.d_model
        number = (self.frequencies + 1) * d_model + (d_model + 1) * d_model
        end = END_PARTS * d_model * (d_model + 1) + self.values(image) * (d_model + 1)
        decoder = 0 if self.latents is None else self.latents.parameters(image.channels)
        return number + self.rows * d_model + end + decoder

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the stem cuts 2-D images into patches, without prefix tokens or convolutions."""
        _patches(stem)

    def record(self) -> Mapping[str, object]:
        """The stored fields: the denoiser, and ``none`` as the head."""
        return {"head": self.name, "denoiser": self}


def _patches(stem: Stem) -> ImageStem:
    """Returns ``stem`` after a check that a denoiser can use it."""
    if stem.vocab_size:
        raise SpecError("a denoiser reads images; give it an image stem", field="denoiser")
    if not isinstance(stem, ImageStem) or stem.axes != 2 or stem.prefix_tokens or stem.convs:
        raise SpecError("a denoiser needs 2-D image patches, without prefix tokens or convolutions", field="stem")
    return stem

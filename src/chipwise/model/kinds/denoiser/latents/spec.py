"""Latents: the fewer values that a denoiser draws instead of pixels, and the decoder that makes images of them.

References:
    Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models, arXiv:2112.10752.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError

FACTORS = (2, 4)
KERNEL = 3  # of the decoder's convolutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """Decoder of latents: ``factor`` by ``factor`` pixels of ``channels`` from each latent.

    The decoder has two convolutions of 3 by 3, the first of which gives ``width`` channels.
    """

    factor: int
    channels: int  # of the image
    width: int = 64

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "channels", "width", most=65_536)
        if self.factor not in FACTORS:
            raise SpecError(f"is 2 or 4 pixels, not {self.factor}", field="factor")

    @property
    def depth(self) -> int:
        """Channels of the latents: with twice the factor an image has half as many values."""
        return self.factor * self.channels

    def shapes(self, depth: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Channels before and after each convolution of latents of ``depth`` channels."""
        return (depth, self.width), (self.width, self.factor**2 * self.channels)

    def parameters(self, depth: int) -> int:
        """Of both convolutions."""
        return sum((KERNEL**2 * into + 1) * out for into, out in self.shapes(depth))

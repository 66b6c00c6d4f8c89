"""Latents: compressed images, which a denoiser can generate instead of pixels, and the decoder of latents.

References:
    Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models, arXiv:2112.10752.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError

FACTORS = (2, 4)
KERNEL = 3  # kernel size of the decoder's convolutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """The latent decoder, which turns each latent into ``factor`` by ``factor`` pixels with ``channels`` channels.

    The decoder has two 3x3 convolutions; the first has ``width`` output channels.
    """

    factor: int
    channels: int  # channels of the image
    width: int = 64

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "channels", "width", most=65_536)
        if self.factor not in FACTORS:
            raise SpecError(f"must be 2 or 4 pixels, not {self.factor}", field="factor")

    @property
    def depth(self) -> int:
        """Number of channels of the latents. Doubling ``factor`` halves the number of values per image."""
        return self.factor * self.channels

    def shapes(self, depth: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Input and output channels of each convolution, for latents of ``depth`` channels."""
        return (depth, self.width), (self.width, self.factor**2 * self.channels)

    def parameters(self, depth: int) -> int:
        """Number of parameters of both convolutions."""
        return sum((KERNEL**2 * into + 1) * out for into, out in self.shapes(depth))

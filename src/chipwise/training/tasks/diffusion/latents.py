"""A small autoencoder, trained on the run's images. Denoisers can generate its latents, which are smaller than images.

The encoder turns each square of ``factor`` by ``factor`` pixels into channels (space to depth) and applies two
convolutions; latents have mean 0 and standard deviation 1 over the training images. The decoder mirrors the encoder.
Training adds noise to latents, so that similar latents decode to similar images (as in a variational autoencoder with a
fixed variance).

References:
    Kingma and Welling 2014, arXiv:1312.6114. Diffusion in such a space: Rombach et al. 2022, arXiv:2112.10752.
    Sub-pixel convolutions: Shi et al. 2016, arXiv:1609.05158.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.model.kinds.denoiser.latents.spec import KERNEL, Latents

if TYPE_CHECKING:
    from torch import Tensor

BATCH, RATE = 64, 2e-3
DISTURBED = 0.1  # deviation of the noise that training adds to latents
STATISTICS = 2_048  # images for computing the mean and deviation of latents
ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A trained autoencoder: its weights by name, ``encoder.…`` and ``decoder.…``."""

    latents: Latents
    weights: Mapping[str, AnyArray]

    @cached_property
    def _modules(self) -> Any:
        import torch

        modules = _modules(self.latents, self.latents.depth)
        modules.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in self.weights.items()})
        return modules.eval().requires_grad_(False)

    def encode(self, images: Tensor) -> Tensor:
        """Latents (n, L, Y / factor, X / factor) of scaled images (n, C, Y, X)."""
        found: Tensor = self._modules["encoder"](images)
        return found

    def decode(self, latents: Tensor) -> Tensor:
        """Images (n, C, Y, X), decoded from latents (n, L, Y / factor, X / factor)."""
        found: Tensor = self._modules["decoder"](latents)
        return found

    def rebuilt(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reconstructions of images (n, C, Y, X): encoded and decoded again."""
        import torch

        parts = (torch.from_numpy(np.ascontiguousarray(images[i : i + ROWS])) for i in range(0, len(images), ROWS))
        return np.concatenate([self.decode(self.encode(part)).numpy() for part in parts])


def train_codec(images: NDArray[np.float32], latents: Latents, *, steps: int, seed: int) -> Codec:
    """Trains an autoencoder on scaled images (n, C, Y, X). Deterministic on one machine."""
    import torch

    random = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules = _modules(latents, latents.depth)
        encoder, decoder = modules["encoder"], modules["decoder"]
        optimiser = torch.optim.AdamW(modules.parameters(), lr=RATE, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=RATE, total_steps=max(steps, 2))
        for _ in range(steps):
            x = torch.from_numpy(images[random.integers(0, len(images), BATCH)])
            found = encoder(x)
            mean, deviation = found.mean((0, 2, 3), keepdim=True), found.std((0, 2, 3), keepdim=True)
            found = (found - mean) / (deviation + 1e-6)
            loss = ((decoder(found + DISTURBED * torch.randn_like(found)) - x) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        _standardise(encoder, torch.from_numpy(images[random.integers(0, len(images), STATISTICS)]))
    weights = {name: value.detach().numpy().copy() for name, value in modules.state_dict().items()}
    return Codec(latents=latents, weights=weights)


def _standardise(encoder: Any, images: Tensor) -> None:
    """Rescales the encoder's output so that each channel has mean 0 and standard deviation 1 over these images."""
    import torch

    with torch.no_grad():
        found, last = encoder(images), encoder[-1]
        mean, deviation = found.mean((0, 2, 3)), found.std((0, 2, 3)) + 1e-6
        last.weight /= deviation[:, None, None, None]
        last.bias.copy_((last.bias - mean) / deviation)


def _modules(latents: Latents, depth: int) -> Any:
    from torch import nn

    from chipwise.model.kinds.denoiser.latents.module import Decoder

    (_, width), (_, pixels) = latents.shapes(depth)
    same = KERNEL // 2
    encoder = nn.Sequential(
        nn.PixelUnshuffle(latents.factor),
        nn.Conv2d(pixels, width, KERNEL, padding=same),
        nn.GELU(),
        nn.Conv2d(width, depth, KERNEL, padding=same),
    )
    return nn.ModuleDict({"encoder": encoder, "decoder": Decoder(latents, depth)})

"""Denoisers that chipwise builds, trains and exports itself (see ``vision`` and ``plain``): DiT on patches of an image.

Patches, positions that are learned, pre-norm layers whose norms have no weights and are modulated instead, and a matrix
back to pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import unbuilt
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.image.form import FREE, layer_departures
from chipwise.model.kinds.image.stem import ImageStem

_FREE = ("denoiser", "norm_weight")  # later fields that denoisers set


def is_denoiser(arch: ArchSpec) -> bool:
    """Whether ``arch`` is a denoiser that chipwise can build."""
    return arch.denoiser is not None and next(_departures(arch), None) is None


def require_denoiser(arch: ArchSpec, *, work: str) -> tuple[ImageStem, Denoiser]:
    """The stem of ``arch`` and its conditions, if it is a denoiser that chipwise builds.

    Raises:
        Unsupported: It is not; names the block or field, and where it stands.
    """
    if arch.denoiser is None or not isinstance(arch.stem, ImageStem):
        raise Unsupported(f"{arch.name} cannot be {work}: it does not denoise images")
    found = next(_departures(arch), None)
    if found is not None:
        raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
    return arch.stem, arch.denoiser


def _departures(arch: ArchSpec) -> Iterator[str]:
    yield from unbuilt(arch, free=(*FREE, *_FREE))
    stem, denoiser = arch.stem, arch.denoiser
    if arch.norm != "layernorm" or arch.norm_weight or arch.norm_bias:
        yield "a norm with weights, or one that is no LayerNorm, is not built for denoisers"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not built for images"
    if denoiser is not None and denoiser.outputs != 1:
        yield "a denoiser that gives a variance too is not built"
    if isinstance(stem, ImageStem) and (
        stem.image_size % stem.patch or stem.mask_token or arch.max_tokens != stem.tokens
    ):
        yield "patches that do not divide the image, or a mask token, are not built for denoisers"
    yield from layer_departures(arch)

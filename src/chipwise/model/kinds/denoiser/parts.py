"""A denoiser's patches and conditions, and how wide what it is modulated with is."""

from __future__ import annotations

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.denoiser.denoiser import END_PARTS, Denoiser
from chipwise.model.kinds.image.stem import ImageStem


def parts_of(arch: ArchSpec) -> tuple[ImageStem, Denoiser]:
    """The stem of a denoiser and its conditions.

    Raises:
        Unsupported: ``arch`` is none.
    """
    if not isinstance(arch.head, Denoiser):
        raise Unsupported(f"{arch.name} does not denoise images")
    return arch.stem_as(ImageStem), arch.head


def modulation_widths(arch: ArchSpec) -> dict[str, int]:
    """Rows of each matrix that modulates a denoiser, by name: of every layer with blocks, and of the last norm."""
    widths = {f"modulations.{i}": arch.modulation_width(layer) for i, layer in enumerate(arch.layers)}
    return {name: width for name, width in widths.items() if width} | {"modulations.end": END_PARTS * arch.d_model}

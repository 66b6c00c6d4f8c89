"""Typed access to a denoiser's stem and head, and the sizes of its modulation matrices."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.denoiser.denoiser import END_PARTS, Denoiser
from chipwise.model.kinds.image.stem import ImageStem


def parts_of(arch: ArchSpec) -> tuple[ImageStem, Denoiser]:
    """The stem and the head of a denoiser.

    Raises:
        Unsupported: ``arch`` is not a denoiser.
    """
    return arch.stem_as(ImageStem), arch.head_as(Denoiser)


def modulation_widths(arch: ArchSpec) -> dict[str, int]:
    """Maps the name of each modulation matrix to its number of rows.

    There is one matrix per layer with blocks, and one for the last norm.
    """
    widths = {f"modulations.{i}": arch.modulation_width(layer) for i, layer in enumerate(arch.layers)}
    return {name: width for name, width in widths.items() if width} | {"modulations.end": END_PARTS * arch.d_model}

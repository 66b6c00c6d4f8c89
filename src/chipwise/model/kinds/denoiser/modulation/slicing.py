"""Slices modulations: of each vector that a matrix makes, the first values."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.cut import Index, rows
from chipwise.model.kinds.denoiser.parts import modulation_widths


def slice_modulation(sub: ArchSpec, whole: ArchSpec, *, name: str, source: str) -> dict[str, dict[int, Index]]:
    """Indices of the matrix ``name`` of ``sub``, cut from ``source`` of ``whole``, by weight and axis.

    Raises:
        SpecError: The two modulate another number of blocks.
    """
    count, parts = (modulation_widths(arch)[key] // arch.d_model for arch, key in ((sub, name), (whole, source)))
    if count != parts:
        raise SpecError(f"{count} vectors are made, where the whole makes {parts}", field=name)
    kept = rows([part * whole.d_model + i for part in range(count) for i in range(sub.d_model)])
    return {f"{name}.weight": {0: kept}, f"{name}.bias": {0: kept}}

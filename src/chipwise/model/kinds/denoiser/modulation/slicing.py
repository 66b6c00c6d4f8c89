"""Slices modulation matrices: the first values of each of their output vectors are kept."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.cut import Index, rows
from chipwise.model.kinds.denoiser.parts import modulation_widths


def slice_modulation(sub: ArchSpec, whole: ArchSpec, *, name: str, source: str) -> dict[str, dict[int, Index]]:
    """Indices, by weight and axis, that cut the matrix ``name`` of ``sub`` from ``source`` of ``whole``.

    Raises:
        SpecError: The two matrices modulate different numbers of blocks.
    """
    count, parts = (modulation_widths(arch)[key] // arch.d_model for arch, key in ((sub, name), (whole, source)))
    if count != parts:
        raise SpecError(f"{count} vectors are made, where the whole makes {parts}", field=name)
    kept = rows([part * whole.d_model + i for part in range(count) for i in range(sub.d_model)])
    return {f"{name}.weight": {0: kept}, f"{name}.bias": {0: kept}}

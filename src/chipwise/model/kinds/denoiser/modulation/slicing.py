"""Cuts smaller modulation matrices out of larger ones: each output vector keeps its first values."""

from __future__ import annotations

from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.cut import Index, rows
from chipwise.model.kinds.denoiser.parts import modulation_widths


def slice_modulation(sub: ArchSpec, whole: ArchSpec, *, name: str, source: str) -> dict[str, dict[int, Index]]:
    """The indices to keep when matrix ``name`` of ``sub`` is cut from matrix ``source`` of ``whole``.

    They are returned as ``{weight: {axis: indices}}``.

    Raises:
        SpecError: The two matrices modulate different numbers of blocks.
    """
    count, parts = (modulation_widths(arch)[key] // arch.d_model for arch, key in ((sub, name), (whole, source)))
    if count != parts:
        raise SpecError(f"makes {count} modulation vectors, but the larger model's matrix makes {parts}", field=name)
    kept = rows([part * whole.d_model + i for part in range(count) for i in range(sub.d_model)])
    return {f"{name}.weight": {0: kept}, f"{name}.bias": {0: kept}}

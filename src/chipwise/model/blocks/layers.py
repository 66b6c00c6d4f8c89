"""Layers of blocks with norms, as operators: what models of sound and encoders of images lower alike."""

from __future__ import annotations

from collections.abc import Iterable

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.norm.lower import lower as lower_norm
from chipwise.model.ops.graph import Placed
from chipwise.model.ops.op import Op

LayerOps = list[tuple[str, list[tuple[str, Op]]]]
"""The blocks of a layer in order, each with its name and its operators, without norms."""


def lower_layers(arch: ArchSpec, layers: Iterable[LayerOps], *, rows: int) -> tuple[list[Placed], bool]:
    """The layers with a norm before or after each block, as ``arch`` has them.

    Also whether the last block's result is still to be added to the residual stream, as before the last norm.
    """
    placed: list[Placed] = []
    skip, after = False, arch.norm_place == "post"
    for i, blocks in enumerate(layers):
        for name, ops in blocks:
            place = f"layers.{i}.{name}"
            inner = [Placed(place=f"{place}.{part}", op=op) for part, op in ops]
            norm = Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip or after))
            placed += [*inner, norm] if after else [norm, *inner]
            skip = not after
    return placed, skip

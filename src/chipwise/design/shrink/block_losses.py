"""Distance of cuts from the original without training, for single blocks or whole cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from chipwise.design.shrink.forward import Weights
from chipwise.design.shrink.importance import Statistics, repaired
from chipwise.design.shrink.material import Comparison, mean_distance
from chipwise.design.shrink.sizes import Sizes, blocks, cut_arch, cut_weights, whole_sizes
from chipwise.model.arch.arch import ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Losses of blocks at other sizes: the distance from the original if only that block is changed."""

    layer: int
    kind: str
    size: int
    loss: float


def cut_loss(arch: ArchSpec, weights: Weights, sizes: Sizes, comparison: Comparison, *, batches: int) -> float:
    """Mean distance of a cut of ``weights`` from the original over some batches."""
    with torch.no_grad():
        return mean_distance(comparison, cut_arch(arch, sizes), cut_weights(arch, sizes, weights), batches)


def replacement_losses(
    arch: ArchSpec,
    weights: Weights,
    found: Statistics,
    options: Mapping[str, Sequence[int]],
    comparison: Comparison,
    *,
    batches: int = 2,
    known: Sequence[Replacement] = (),
    keep: Callable[[list[Replacement]], None] = lambda done: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Replacement]:
    """Losses of every block in ``options`` at every size, if only that block is cut and repaired.

    Args:
        arch: The original, its weights ordered by importance.
        weights: Its weights.
        found: Statistics of the calibration data.
        options: Sizes by kind of block; 0 removes the block. The full size has loss 0 by definition.
        comparison: The original on the calibration data.
        batches: How many batches are used.
        known: Losses from an earlier run.
        keep: Called after each block with all losses so far.
        on_progress: Called with the number of blocks done and the total.
    """
    whole = whole_sizes(arch)
    have = {(item.layer, item.kind, item.size): item for item in known}
    wanted = [(i, kind, s) for i, kind in blocks(arch) for s in options[kind] if s < whole.block(i, kind)]
    done: list[Replacement] = []
    for number, (i, kind, size) in enumerate(wanted):
        item = have.get((i, kind, size))
        if item is None:
            sizes = whole.with_block(i, kind, size)
            mended = repaired(arch, weights, found, sizes)
            loss = cut_loss(arch, mended, sizes, comparison, batches=batches)
            item = Replacement(layer=i, kind=kind, size=size, loss=loss)
        done.append(item)
        if number + 1 == len(wanted) or wanted[number + 1][:2] != (i, kind):
            keep(done)
        on_progress(number + 1, len(wanted))
    return done

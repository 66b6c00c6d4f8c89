"""Computes how far the original is from models in which a single block was pruned, before any training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chipwise.design.shrink.forward import Weights
from chipwise.design.shrink.importance import Statistics, repaired
from chipwise.design.shrink.material import Comparison, mean_distance
from chipwise.design.shrink.sizes import blocks, cut_arch, cut_weights, whole_sizes
from chipwise.model.arch.arch import ArchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Loss of one block at one smaller size: distance from the original if only this block is pruned."""

    layer: int
    kind: str
    size: int
    loss: float


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
    """Losses of every block at every smaller size in ``options``, if only this block is pruned.

    After pruning, the block is repaired by least squares.

    Args:
        arch: The original's architecture.
        weights: The original's weights, ordered by importance.
        found: Statistics of the original on the calibration data.
        options: Sizes by kind of block; 0 removes the block. The full size has loss 0 by definition.
        comparison: The original's results on the training data.
        batches: Number of batches on which distances are computed.
        known: Losses from an earlier run.
        keep: Called after each block with all losses so far, to store them.
        on_progress: Called with the number of finished losses and of all losses.
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
            loss = mean_distance(comparison, cut_arch(arch, sizes), cut_weights(arch, sizes, mended), batches)
            item = Replacement(layer=i, kind=kind, size=size, loss=loss)
        done.append(item)
        if number + 1 == len(wanted) or wanted[number + 1][:2] != (i, kind):
            keep(done)
        on_progress(number + 1, len(wanted))
    return done

"""Which layers choose together: every choice of a layer has slots, and each layer reads one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.space.spec import SpaceSpec

_LABELS = {"alternating": ("even", "odd"), "thirds": ("first", "middle", "last")}


@dataclass(frozen=True)
class Slots:
    """The slots of one choice.

    Attributes:
        labels: What people call each slot: a layer's number, ``even``, ``first`` …
        of: The slot that each layer reads, (sharing, depth, layer), by the indices of the space's lists.
        used: Which slots count, (sharing, depth, slot).
    """

    labels: tuple[str, ...]
    of: NDArray[np.int64]
    used: NDArray[np.bool_]


def slots_of(spec: SpaceSpec) -> dict[str, Slots]:
    """The slots of every choice of a layer."""
    return {choice: _slots(spec, spec.tie(choice)) for choice in spec.layer_choices}


def _slots(spec: SpaceSpec, tie: str) -> Slots:
    deepest = max(spec.depth)
    labels = _LABELS.get(tie, tuple(map(str, range(deepest if tie == "each" else 1))))[:deepest]
    of = np.zeros((len(spec.sharing), len(spec.depth), deepest), np.int64)
    used = np.zeros((len(spec.sharing), len(spec.depth), len(labels)), bool)
    for s, sharing in enumerate(spec.sharing):
        for d, depth in enumerate(spec.depth):
            for layer in range(deepest):
                owner = layer - layer % 2 if sharing == "pairs" else layer
                of[s, d, layer] = _slot(tie, owner, depth)
                if layer < depth:
                    used[s, d, of[s, d, layer]] = True
    return Slots(labels, of, used)


def _slot(tie: str, layer: int, depth: int) -> int:
    """The slot that ``layer`` of ``depth`` layers reads.

    >>> [_slot("thirds", layer, 7) for layer in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    """
    if tie == "alternating":
        return layer % 2
    if tie == "thirds":
        return min(3 * layer // depth, 2)
    return layer if tie == "each" else 0

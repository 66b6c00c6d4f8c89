"""Random inputs for a run of a user's model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.model.graphs.graph import GraphInput


def made_inputs(inputs: Sequence[GraphInput], *, seed: int) -> dict[str, AnyArray]:
    """Maps each input's name to an array: normal random floats, 1 for integers (tokens, masks), true for booleans."""
    random = np.random.default_rng(seed)
    made: dict[str, AnyArray] = {}
    for each in inputs:
        kind, sizes = np.dtype(each.dtype), tuple(map(int, each.shape))
        made[each.name] = random.standard_normal(sizes).astype(kind) if kind.kind == "f" else np.ones(sizes, kind)
    return made

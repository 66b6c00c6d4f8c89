"""Widens a space whose best designs lie at its edge: the list of a size gets a larger value where that pays.

The best design is the one of least expected loss within the limits, by the law of the loss and before the run trains
anything. So the decision follows from the run file, the calibration and the trainings of earlier runs, and one that
trains a single design makes it, too. Its result is stored in the study, so a resumed run keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chipwise.core import units
from chipwise.design.phases.halving import LEAST_GAIN
from chipwise.errors import OutOfReach, SpecError
from chipwise.model.kinds.choices import Chosen
from chipwise.model.space.space_spec import NO_FFN, SpaceSpec

MOST_ROUNDS = 6  # values that one list may get
WIDTHS, SIZES = ("d_model", "ffn_width"), ("d_model", "depth", "ffn_width")
Found = tuple[Chosen, float]  # choices of the best design of a space, and its expected loss
Added = Mapping[str, Sequence[int]]  # values beyond those of the run file, by choice


def widened(space: SpaceSpec, best: Callable[[SpaceSpec], Found], *, tile: int) -> tuple[dict[str, list[int]], float]:
    """Values that the lists of ``space`` lack, and by how much the expected ln loss falls with them.

    In each round every size at which the best design has the largest listed value gets the next one. It stays where
    the best design of the wider space uses it and its ln loss is less by at least ``LEAST_GAIN``.

    Args:
        space: The space of the run file. Lists of one value are no choices, and stay.
        best: The best design of a space within the run's limits.
        tile: New widths are multiples of this.
    """
    added: dict[str, list[int]] = {}
    choices, loss = best(space)
    begun = loss
    for _ in range(MOST_ROUNDS):
        if not (further := _further(with_values(space, added), choices, tile=tile)):
            break
        try:
            wider, less = best(with_values(space, _joined(added, further)))
        except (OutOfReach, SpecError):  # no design within the limits was found; too many blocks or layers
            break
        used = {name: value for name, value in further.items() if value in _sizes(wider, name)}
        if not used or math.log(loss / less) < LEAST_GAIN:
            break
        added, choices, loss = _joined(added, used), wider, less
    return added, math.log(begun / loss)


def with_values(space: SpaceSpec, added: Added) -> SpaceSpec:
    """``space`` with further values of its sizes.

    Raises:
        SpecError: The space would be too large.
    """
    lists = {name: (*space.values(name), *added.get(name, ())) for name in SIZES}
    layer = replace(space.layer, ffn_width=lists["ffn_width"])
    return replace(space, d_model=lists["d_model"], depth=lists["depth"], layer=layer)


def said(space: SpaceSpec, added: Added, gain: float) -> str:
    """One sentence on a space of a run file that was widened."""
    parts = [
        f"{name} {', '.join(map(str, values))} (the file lists up to {max(space.values(name))})"
        for name, values in added.items()
    ]
    return (
        f"the best designs lay at the edge of the space, so it was widened by {' and '.join(parts)}: the law of the "
        f"loss expects {units.show(1 - math.exp(-gain), 'share', digits=2)} less within the limits"
    )


def _further(space: SpaceSpec, choices: Chosen, *, tile: int) -> dict[str, int]:
    """The next value of each size of which a design has the largest one; of layers, if half of them have it."""
    found = {}
    for name in SIZES:
        values, own = sorted(space.values(name)), sorted(_sizes(choices, name))
        if len(values) > 1 and own and own[len(own) // 2] == values[-1]:
            step = tile if name in WIDTHS else 1
            found[name] = -(-(2 * values[-1] - values[-2]) // step) * step
    return found


def _sizes(choices: Chosen, name: str) -> list[int]:
    """The values of a size in a design: one, or that of each layer with a feed-forward."""
    if name != "ffn_width":
        return [choices[name]]
    return [layer[name] for layer in choices["layers"] if layer["ffn"] != NO_FFN]


def _joined(added: Added, further: Mapping[str, int]) -> dict[str, list[int]]:
    return {
        name: [*added.get(name, ()), *([further[name]] if name in further else [])]
        for name in SIZES
        if name in added or name in further
    }

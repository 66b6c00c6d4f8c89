"""Widens a space whose best designs lie at its edge: adds larger values to its lists of sizes if that lowers the loss.

The best design is the one within the limits with the lowest loss that the law expects before the run trains anything.
So the decision depends only on the run file, the calibration and the training results of earlier runs, and it is
possible even in runs that train a single design. The result is stored in the study, so a resumed run keeps it.
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

MOST_ROUNDS = 6  # most values that are added to one list
WIDTHS, SIZES = ("d_model", "ffn_width"), ("d_model", "depth", "ffn_width")
Found = tuple[Chosen, float]  # choices of the best design of a space, and its expected loss
Added = Mapping[str, Sequence[int]]  # values beyond those in the run file, by choice


def widened(space: SpaceSpec, best: Callable[[SpaceSpec], Found], *, tile: int) -> tuple[dict[str, list[int]], float]:
    """Finds values to add to the lists of ``space``, and by how much they lower the expected ln loss.

    In each round, if the best design has the largest listed value of a size, the next larger value is added to that
    list. The value stays if the best design of the wider space uses it and has an ln loss that is lower by at least
    ``LEAST_GAIN``.

    Args:
        space: The space of the run file. Lists with a single value are not choices and stay as they are.
        best: Finds the best design of a space within the run's limits.
        tile: Columns of the chip's tile; new widths are multiples of it.
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
    """``space`` with values added to the lists of its sizes.

    Raises:
        SpecError: The space would be too large.
    """
    lists = {name: (*space.values(name), *added.get(name, ())) for name in SIZES}
    layer = replace(space.layer, ffn_width=lists["ffn_width"])
    return replace(space, d_model=lists["d_model"], depth=lists["depth"], layer=layer)


def said(space: SpaceSpec, added: Added, gain: float) -> str:
    """One sentence that says how the space of a run file was widened."""
    parts = [
        f"{name} {', '.join(map(str, values))} (the file lists up to {max(space.values(name))})"
        for name, values in added.items()
    ]
    return (
        f"the best designs lay at the edge of the space, so it was widened by {' and '.join(parts)}: the law of the "
        f"loss expects a loss {units.show(1 - math.exp(-gain), 'share', digits=2)} lower within the limits"
    )


def _further(space: SpaceSpec, choices: Chosen, *, tile: int) -> dict[str, int]:
    """The next larger value of each size that is at its maximum in the design, or in half of the design's layers."""
    found = {}
    for name in SIZES:
        values, own = sorted(space.values(name)), sorted(_sizes(choices, name))
        if len(values) > 1 and own and own[len(own) // 2] == values[-1]:
            step = tile if name in WIDTHS else 1
            found[name] = -(-(2 * values[-1] - values[-2]) // step) * step
    return found


def _sizes(choices: Chosen, name: str) -> list[int]:
    """The values of a size in a design: a single one, or one for each layer with a feed-forward."""
    if name != "ffn_width":
        return [choices[name]]
    return [layer[name] for layer in choices["layers"] if layer["ffn"] != NO_FFN]


def _joined(added: Added, further: Mapping[str, int]) -> dict[str, list[int]]:
    return {
        name: [*added.get(name, ()), *([further[name]] if name in further else [])]
        for name in SIZES
        if name in added or name in further
    }

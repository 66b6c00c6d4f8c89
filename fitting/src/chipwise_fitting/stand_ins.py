"""Known models that represent unknown ones in tables of published runs: the same family and about the same size.

A run of a model with an unknown config still shows how fast a chip is, if a similar model is predicted in its place.
Users never get such a prediction, because chipwise refuses unknown names.
"""

from __future__ import annotations

import functools
import math
import os
import re
from itertools import takewhile

from chipwise.errors import UnknownName
from chipwise.model.published import families

_FAMILY = re.compile(r"[a-z]{3,}")
_SIZE = re.compile(
    r"(?<![a-z0-9.])(?:(?P<count>\d+)x)?(?P<effective>e)?(?P<size>\d+(?:\.\d+)?)(?P<unit>[bm])(?![a-z0-9])"
)
_ACTIVE = re.compile(r"(?<![a-z0-9])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
MOST_UNLIKE = 3.0  # largest ratio of parameters between an unknown model and the one that represents it


@functools.lru_cache(maxsize=4096)
def stand_in(name: str) -> str:
    """Returns the known model that represents ``name``: the same model if known, else the nearest one, if any.

    A name that looks like a path (by its ending, or more separators than an id has) is returned unchanged.
    """
    if os.path.exists(name) or name.endswith((".json", ".yaml", ".yml")) or name.count("/") > 1:
        return name
    try:
        families.id_of(name)
    except UnknownName:
        return nearest(name) or name
    return name


def nearest(name: str) -> str | None:
    """Returns the known id of the same family and most similar size; None if ``name`` tells no size or family.

    Sizes are read from names such as ``7B``, ``270M``, ``8x7B``, ``30B-A3B`` (3 billion are active), ``E4B``.
    """
    tail = name.rpartition("/")[2].lower()
    wanted, family = _sizes_in(tail), _FAMILY.match(tail)
    if wanted is None or family is None:
        return None
    alike: list[tuple[float, str]] = []
    for known in families.names():
        other = known.rpartition("/")[2].lower()
        sizes = _sizes_in(other)
        if sizes is None or not other.startswith(family[0]):
            continue
        whole, active = (abs(math.log(a / b)) for a, b in zip(wanted, sizes, strict=True))
        if max(whole, active) <= math.log(MOST_UNLIKE):
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tail, other, strict=False)))
            alike.append((whole + active - 0.5 * same / len(tail), known))  # prefers the closest generation
    return min(alike)[1] if alike else None


def _sizes_in(tail: str) -> tuple[float, float] | None:
    """Returns the parameters and the active parameters per token that a name states, in billions."""
    found = _SIZE.search(tail)
    if found is None:
        return None
    whole = float(found["count"] or 1) * float(found["size"]) * (1e-3 if found["unit"] == "m" else 1.0)
    active = _ACTIVE.search(tail)
    if found["effective"]:
        return 2 * whole, whole  # Gemma's E sizes: half of the weights are a table of embeddings for every layer
    if active is None:
        return (whole, 0.27 * whole) if found["count"] else (whole, whole)  # two of eight experts
    return whole, float(active[1])

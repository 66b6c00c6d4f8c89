"""Known models that stand for others in tables of published runs: of one family and about one size.

A run of a model whose config is not known still tells how fast a chip is, if a model much like it is priced in its
place. Users get no such answer: a name that is not known is refused.
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
MOST_UNLIKE = 3.0  # times as many parameters: what a config may differ by that stands for a model that is not known


@functools.lru_cache(maxsize=4096)
def stand_in(name: str) -> str:
    """The known model whose config answers for ``name``: its own, else the nearest, else ``name`` itself.

    A name with a path's endings or separators that no hub's id has is never stood in for.
    """
    if os.path.exists(name) or name.endswith((".json", ".yaml", ".yml")) or name.count("/") > 1:
        return name
    try:
        families.id_of(name)
    except UnknownName:
        return nearest(name) or name
    return name


def nearest(name: str) -> str | None:
    """The known id most like ``name``: of its family and about its size; None where the name tells no size or family.

    A size is read as names write it: ``7B``, ``270M``, ``8x7B``, ``30B-A3B`` (of which 3 are active), ``E4B``.
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
            alike.append((whole + active - 0.5 * same / len(tail), known))  # as close a generation as there is
    return min(alike)[1] if alike else None


def _sizes_in(tail: str) -> tuple[float, float] | None:
    """Parameters in all and those active for a token, in billions, as a name tells them."""
    found = _SIZE.search(tail)
    if found is None:
        return None
    whole = float(found["count"] or 1) * float(found["size"]) * (1e-3 if found["unit"] == "m" else 1.0)
    active = _ACTIVE.search(tail)
    if found["effective"]:
        return 2 * whole, whole  # Gemma's: half of the weights are a table of embeddings for every layer
    if active is None:
        return (whole, 0.27 * whole) if found["count"] else (whole, whole)  # two of eight experts
    return whole, float(active[1])

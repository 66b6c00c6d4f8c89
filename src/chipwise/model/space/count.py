"""Counts the distinct designs in a space exactly, without listing them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

import numpy as np

from chipwise.model.space.conditions import Conditions
from chipwise.model.space.space_spec import Slots, SpaceSpec


def size(spec: SpaceSpec, slots: Mapping[str, Slots], conditions: Conditions) -> int:
    """Number of distinct designs.

    Only global choices that affect the layers are enumerated (depth, sharing, and those in conditions). For each
    combination, the numbers of possible values of all slots are multiplied.
    """
    choices = spec.layer_choices
    groups = _joined(choices, conditions)
    given_to = {given for group in groups for given in _global_givens(choices, conditions, group)}
    givens = sorted(given_to, key=spec.globals.index)
    matter = list(dict.fromkeys([*givens, "depth", "sharing"]))
    joined = [name for name in spec.globals if conditions.rules[name]]
    table = conditions.assignments([*matter, *joined])
    free = math.prod(len(spec.values(name)) for name in spec.globals if name not in table)
    rows = Counter(zip(*(table[name].tolist() for name in matter), strict=True))
    per_slot = [_per_slot(conditions, group, givens) for group in groups]
    total = 0
    for key, times in rows.items():
        chosen = dict(zip(matter, key, strict=True))
        where = chosen["sharing"], chosen["depth"]
        product = times
        for group, counts in zip(groups, per_slot, strict=True):
            used = np.flatnonzero(slots[group[0]].used[where]).tolist()
            for slot in used:
                product *= _count(spec, group, counts, tuple(chosen[name] for name in givens), slot)
        total += product
    return total * free


def show_size(count: int) -> str:
    """The number of designs as readable text, however large.

    >>> show_size(1_234), show_size(123 * 10**998)
    ('1,234', '1.23e+1000')
    """
    if count < 10**9:
        return f"{count:,}"
    return f"{Decimal(count):.2e}"


def _joined(choices: tuple[str, ...], conditions: Conditions) -> list[tuple[str, ...]]:
    """The per-layer choices, grouped by the conditions that connect them."""
    groups = [{name} for name in choices]
    for name in choices:
        for rule in conditions.rules[name]:
            for given in set(rule.when) & set(choices):
                mine = next(group for group in groups if name in group)
                theirs = next(group for group in groups if given in group)
                if mine is not theirs:
                    groups.remove(theirs)
                    mine |= theirs
    return [tuple(sorted(group, key=choices.index)) for group in groups]


def _global_givens(choices: tuple[str, ...], conditions: Conditions, group: tuple[str, ...]) -> set[str]:
    named = {given for name in group for rule in conditions.rules[name] for given in rule.when}
    return named - {*choices, "layer"}


def _per_slot(
    conditions: Conditions, group: tuple[str, ...], givens: list[str]
) -> Counter[tuple[tuple[int, ...], int]] | None:
    """Maps (values of ``givens``, slot) to the number of combinations of the choices ``group``.

    None if the group has no conditions.
    """
    if not any(conditions.rules[name] for name in group):
        return None
    by_layer = any("layer" in rule.when for name in group for rule in conditions.rules[name])
    table = conditions.assignments([*group, *givens, *(["layer"] if by_layer else [])])
    mine = {name: table[name] for name in (*givens, *group)} | {"layer": table.get("layer", np.zeros(1, np.int64))}
    count = len(table[group[0]])
    columns = np.stack([np.broadcast_to(column, count) for column in mine.values()], axis=1)
    distinct = np.unique(columns, axis=0)  # connected choices produce duplicates
    return Counter((tuple(row[: len(givens)]), row[-1]) for row in distinct.tolist())


def _count(
    spec: SpaceSpec,
    group: tuple[str, ...],
    counts: Counter[tuple[tuple[int, ...], int]] | None,
    given: tuple[int, ...],
    slot: int,
) -> int:
    if counts is None:
        return math.prod(len(spec.values(name)) for name in group)
    return counts[(given, slot)] if (given, slot) in counts else counts[(given, 0)]

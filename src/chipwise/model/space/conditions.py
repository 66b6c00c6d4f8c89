"""Conditions between choices, compiled to small tables of allowed values and of the nearest allowed values.

Choices are ordered so that each depends only on earlier ones. One pass over the columns then samples or repairs rows.
Combinations are only enumerated for the few choices that conditions connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.errors import SpecError, nearest
from chipwise.model.kinds.choices import NO_ATTENTION
from chipwise.model.space.space_spec import ATTENTION_PARTS, NO_FFN, Condition, Slots, SpaceSpec, listed

Flags = NDArray[np.bool_]
Index = NDArray[np.int64]
_MOST = 12  # most conditions on one choice: their tables have 2^12 rows
_JOINED = 4_000_000  # most combinations of connected choices that are checked for contradictions


@dataclass(frozen=True)
class Rule:
    """One condition on one choice: if all of ``when`` are met, only the values ``allowed`` are possible."""

    target: str
    when: dict[str, Flags]  # by choice, or "layer" for the slot: which values meet the condition
    allowed: Flags
    text: str


class Conditions:
    """Computes which values the conditions of a space allow.

    Args:
        spec: The space.
        slots: For each per-layer choice, its slots (see :class:`~chipwise.model.space.space_spec.Slots`).

    Raises:
        SpecError: A name or value is unknown, conditions form a cycle, or they leave a choice without a value.
    """

    def __init__(self, spec: SpaceSpec, slots: dict[str, Slots]) -> None:
        self._spec, self._slots = spec, slots
        rules = [rule for i, item in enumerate(spec.conditions) for rule in self._read(item, f"conditions[{i}]")]
        rules += self._implied(rules) + self._of_missing_blocks()
        self.rules = {
            name: [rule for rule in rules if rule.target == name] for name in (*spec.globals, *spec.layer_choices)
        }
        self.order = self._ordered()
        self._tables = {name: self._table(name, found) for name, found in self.rules.items() if found}
        self._nearest = {name: np.array([_nearest(row) for row in table]) for name, table in self._tables.items()}
        self.contradictions()

    def _read(self, item: Condition, field: str) -> list[Rule]:
        when: dict[str, Flags] = {}
        for name, values in item.when.items():
            choice, flags = self._flags(name, values, f"{field}.when.{name}")
            when[choice] = when[choice] & flags if choice in when else flags
        rules = []
        for name, values in item.only.items():
            where = f"{field}.only.{name}"
            target, allowed = self._flags(name, values, where)
            if target == "layer":
                raise SpecError("the layer number is not a choice; use it in `when`", field=where)
            givens = dict(when)
            if target in givens:  # a condition within one choice, as between heads and KV heads
                allowed = allowed | ~givens.pop(target)
            for given in givens:
                self._together(given, target, where)
            rules.append(Rule(target, givens, allowed, str(item)))
        return rules

    def _together(self, given: str, target: str, field: str) -> None:
        if target not in self._spec.layer_choices and given in (*self._spec.layer_choices, "layer"):
            raise SpecError(f"{target} is chosen per model, but {given} per layer; swap `when` and `only`", field=field)
        if given in self._spec.layer_choices and self._spec.tie(given) != self._spec.tie(target):
            raise SpecError(
                f"{given} and {target} are connected by a condition, so `layers` must be the same for both, not "
                f"{self._spec.tie(given)} and {self._spec.tie(target)}; change `layers`",
                field=field,
            )

    def _flags(self, name: str, values: object, field: str) -> tuple[str, Flags]:
        """The choice that ``name`` refers to, and a mask over its possible values that marks ``values``."""
        if name == "layer":
            ties = {self._spec.tie(choice): self._slots[choice].labels for choice in self._spec.layer_choices}
            if len(ties) > 1:
                raise SpecError("needs the same value of `layers` for all choices; change `layers`", field=field)
            (known,) = ties.values()
            return "layer", self._met([str(value) for value in listed(values)], list(known), field)
        parts = ATTENTION_PARTS[: len(self._spec.attention_choices()[0])]
        if name in parts:
            part = [choice[parts.index(name)] for choice in self._spec.attention_choices()]
            return "attention", self._met(listed(values), part, field)
        if name not in (*self._spec.globals, *self._spec.layer_choices) or name == "attention":
            known_names = (*self._spec.globals, *parts, *self._spec.layer_choices[1:], "layer")
            raise SpecError(f"unknown choice; {nearest(name, known_names)}", field=field)
        return name, self._met(listed(values), list(self._spec.values(name)), field)

    @staticmethod
    def _met(wanted: Sequence[object], known: Sequence[object], field: str) -> Flags:
        for value in wanted:
            if not any(value == item and type(value) is type(item) for item in known):
                shown = list(dict.fromkeys(known))
                raise SpecError(f"{value!r} is not in the space, which lists {shown}", field=field)
        if not wanted:
            raise SpecError("the list is empty, so nothing would be allowed", field=field)
        return np.array([item in wanted for item in known])

    def _implied(self, rules: Sequence[Rule]) -> list[Rule]:
        """The built-in condition that a model of one layer cannot share weights between layers."""
        depth, sharing = self._spec.depth, self._spec.sharing
        if len(sharing) < 2 or 1 not in depth:
            return []
        one, none = np.array(depth) == 1, np.array(sharing) == "none"
        text = "a single layer cannot share weights"
        if "sharing" not in _ancestors("depth", rules):
            return [Rule("sharing", {"depth": one}, none, text)]
        return [Rule("depth", {"sharing": ~none}, ~one, text)] if not one.all() else []

    def _of_missing_blocks(self) -> list[Rule]:
        """The built-in conditions: the first layer has attention, and a layer without attention has a feed-forward.

        A first layer without attention would compute a function of each token alone, as the token table already does.
        """
        pairs, rules = self._spec.attention_choices(), []
        if NO_ATTENTION not in pairs:
            return []
        without = np.array([pair == NO_ATTENTION for pair in pairs])
        labels = self._slots["attention"].labels
        if len(labels) == 1:
            raise SpecError(
                "the first layer needs attention, and with `layers: alike` so do all layers; leave `heads: none` out",
                field="layer.heads",
            )
        first = np.arange(len(labels)) == 0
        rules.append(Rule("attention", {"layer": first}, ~without, "the first layer needs attention"))
        if NO_FFN in self._spec.layer.ffn:
            self._together("attention", "ffn", "layers")
            some = np.array([kind != NO_FFN for kind in self._spec.layer.ffn])
            rules.append(Rule("ffn", {"attention": without}, some, "a layer needs attention or a feed-forward"))
        return rules

    def _ordered(self) -> tuple[str, ...]:
        waiting = [*self._spec.globals, *self._spec.layer_choices]
        order: list[str] = []
        while waiting:
            ready = next((name for name in waiting if not self._needs(name) & set(waiting)), None)
            if ready is None:
                found = next(rule for name in waiting for rule in self.rules[name])
                raise SpecError(
                    f"conditions form a cycle among {', '.join(name for name in waiting if self.rules[name])}; "
                    f"one of them is: {found.text}",
                    field="conditions",
                )
            waiting.remove(ready)
            order.append(ready)
        return tuple(order)

    def _needs(self, name: str) -> set[str]:
        return {given for rule in self.rules[name] for given in rule.when}

    def _table(self, name: str, rules: Sequence[Rule]) -> Flags:
        """Masks of the allowed values, one for each subset of rules that may apply, (2^rules, values)."""
        if len(rules) > _MOST:
            raise SpecError(f"{len(rules)} conditions limit {name}; at most {_MOST} are possible", field="conditions")
        left = np.ones((1 << len(rules), len(rules[0].allowed)), bool)
        for code in range(len(left)):
            for i, rule in enumerate(rules):
                if code >> i & 1:
                    left[code] &= rule.allowed
        return left

    def left(self, name: str, chosen: Mapping[str, Index], count: int) -> Flags | None:
        """Mask of the values of ``name`` that ``chosen`` allows, (count, values); None if all are allowed.

        Args:
            name: The choice.
            chosen: For each choice on which ``name`` depends: the index of the value that each candidate has, (count,).
                If ``name`` also depends on the layer, the key ``layer`` has the number of each candidate's slot,
                (count,).
            count: Number of candidates.
        """
        rules = self.rules[name]
        return self._tables[name][self._codes(rules, chosen, count)] if rules else None

    def mended(self, name: str, chosen: Mapping[str, Index], values: Index) -> Index:
        """``values`` of the choice ``name``, (n,), with each forbidden value replaced by the nearest allowed value."""
        return self._nearest[name][self._codes(self.rules[name], chosen, len(values)), values]

    def drawn(self, name: str, chosen: Mapping[str, Index], share: NDArray[np.float64]) -> Index:
        """Selects allowed values of the choice ``name``, (n,), as indices.

        ``share`` (n,), at least 0 and below 1, is the selected value's relative place in the list of allowed values.
        """
        table = self._tables[name]
        counts = table.sum(axis=1)
        ranked = np.argsort(~table, axis=1, kind="stable")  # allowed values come first, in the list's order
        codes = self._codes(self.rules[name], chosen, len(share))
        picked: Index = ranked[codes, (share * counts[codes]).astype(np.int64)]
        return picked

    @staticmethod
    def _codes(rules: Sequence[Rule], chosen: Mapping[str, Index], count: int) -> Index:
        code = np.zeros(count, np.int64)
        for i, rule in enumerate(rules):
            met = np.ones(count, bool)
            for given, flags in rule.when.items():
                met &= flags[chosen[given]]
            code |= met.astype(np.int64) << i
        return code

    def assignments(self, names: Iterable[str]) -> dict[str, Index]:
        """All allowed combinations of the choices ``names`` and of the choices that they depend on, as indices.

        Raises:
            SpecError: A choice has no allowed value, or conditions connect too many choices to check.
        """
        wanted = set(names)
        for name in tuple(wanted):
            if name != "layer":
                wanted |= _ancestors(name, [rule for rules in self.rules.values() for rule in rules])
        table: dict[str, Index] = {}
        rows = 1
        for name in (*(("layer",) if "layer" in wanted else ()), *(item for item in self.order if item in wanted)):
            if name == "layer":  # the slots of the choices, which are tied alike
                tied = next(choice for choice in self._spec.layer_choices if choice in wanted)
                size = len(self._slots[tied].labels)
            else:
                size = len(self._spec.values(name))
            if rows * size > _JOINED:
                raise SpecError(
                    f"conditions connect {', '.join(sorted(wanted))}: over {_JOINED:,} combinations; connect fewer",
                    field="conditions",
                )
            keep = None if name == "layer" else self.left(name, table, rows)
            if keep is not None and not keep.any(axis=1).all():
                raise self._contradiction(name, table, int(np.flatnonzero(~keep.any(axis=1))[0]))
            table = {key: np.repeat(column, size) for key, column in table.items()}
            table[name] = np.tile(np.arange(size), rows)
            if keep is not None:
                kept = keep.ravel()
                table = {key: column[kept] for key, column in table.items()}
            rows = len(table[name])
        return table

    def contradictions(self) -> None:
        """Raises SpecError if some combination of choices leaves no value for another choice."""
        for name in self.order:
            if self.rules[name]:
                self.assignments([name])

    def _contradiction(self, name: str, table: dict[str, Index], row: int) -> SpecError:
        applied = [
            rule.text
            for rule in self.rules[name]
            if all(flags[table[given][row]] for given, flags in rule.when.items())
        ]
        return SpecError(
            f"no value of {name} is left if these conditions meet: {'; and '.join(applied)}", field="conditions"
        )


def _nearest(left: Flags) -> Index:
    """For each value, the index of the nearest allowed value; its own index if no value is allowed."""
    places = np.arange(len(left))
    if not left.any():
        return places
    kept = np.flatnonzero(left)
    found: Index = kept[np.abs(places[:, None] - kept).argmin(axis=1)]
    return found


def _ancestors(name: str, rules: Sequence[Rule]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        now = waiting.pop()
        for rule in rules:
            if rule.target == now:
                fresh = set(rule.when) - found
                found |= fresh
                waiting += fresh - {"layer"}
    return found

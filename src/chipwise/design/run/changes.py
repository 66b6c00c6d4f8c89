"""Checks changes to a run that is resumed: only limits, budget and seed may change.

There are two exceptions. The budget of a search by a scaling law may not change, because its results depend on the
number of tokens. The seed of a run from a pretrained model may not change, because every stage depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chipwise.core.digest import plain
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec
from chipwise.errors import SpecError, short

AnySpec = RunSpec | StartSpec
MAY_CHANGE = "limits (constraints, confidence), the budget and the seed"
_BY_LAW, _FROM_MODEL = "limits (constraints, confidence) or another seed", "limits (constraints) or another budget"
_FREE = ("folder", "budget.workers", "train.on", "train.device", "carbon")  # they do not affect results
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Settings that may change when a run is resumed; stored in the study, because decisions depend on them."""

    limits: dict[str, object]
    budget: dict[str, object]
    seed: int

    @classmethod
    def of(cls, spec: AnySpec) -> Basis:
        """These settings in ``spec``."""
        limits: dict[str, object] = {"constraints": spec.constraints}
        if isinstance(spec, RunSpec):
            elsewhere = {item.device: dict(item.constraints) for item in spec.targets}
            limits |= {"confidence": spec.confidence, "elsewhere": elsewhere}
        budget = {name: value for name, value in plain(spec.budget).items() if name != "workers"}
        return cls(limits=plain(limits), budget=budget, seed=spec.seed)


def check_changes(was: AnySpec, now: AnySpec, *, folder: object) -> None:
    """Checks that ``now`` differs from the run in ``folder`` only in fields that may change.

    Raises:
        SpecError: Another field differs; the message names the field and both values.
    """
    by_law = isinstance(now, RunSpec) and now.quality.chosen == "law"
    may = _FROM_MODEL if isinstance(now, StartSpec) else _BY_LAW if by_law else MAY_CHANGE
    for field, before, after in differences(was, now):
        raise SpecError(
            f"was {_shown(before)} and is now {_shown(after)}; the run in {folder} can be resumed only with new "
            f"{may}; put the old value back, search into another folder with --out, or put the run aside with "
            "--restart",
            field=field,
        )


def differences(was: AnySpec, now: AnySpec) -> Iterator[tuple[str, object, object]]:
    """Fields that differ although they may not change, each with its old and new value."""
    before, after = dict(_flat(plain(was))), dict(_flat(plain(now)))
    keeps = "seed" if isinstance(now, StartSpec) else "budget" if now.quality.chosen == "law" else ""
    for field in dict.fromkeys((*before, *after)):
        old, new = before.get(field, _MISSING), after.get(field, _MISSING)
        if old != new and not (_may_change(field) and (field in _FREE or field.split(".")[0] != keeps)):
            yield field, old, new
    if was.budget.unit != now.budget.unit:
        yield "budget", was.budget.unit, now.budget.unit


def _may_change(field: str) -> bool:
    parts = field.split(".")
    return field in _FREE or parts[0] in ("constraints", "confidence", "budget", "seed") or "constraints" in parts[1:]


def _flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Flattens nested fields to values by field path; a list of plain values counts as one value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for i, item in enumerate(value):
            yield from _flat(item, f"{path}[{i}]")
    else:
        yield path, value


def _shown(value: object) -> str:
    return "left out" if value is _MISSING or value is None else short(value, quoted=isinstance(value, str | list))

"""Builds the record of a finished or unfinished run that starts from a pretrained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Required, TypedDict

from chipwise.core.files import build, read_mapping
from chipwise.core.record import Record
from chipwise.design.limits import Constraint, broken
from chipwise.design.phases.run_record import intervals_of, score_of
from chipwise.design.report import record as rec
from chipwise.design.report.record import TaskSummary
from chipwise.design.run.footprint import footprint
from chipwise.design.run.start_spec import ORIGINAL, StartSpec
from chipwise.design.run.trials import now
from chipwise.design.shrink.block_selection import Method
from chipwise.hardware.detect import detect


class Contender(TypedDict, total=False):
    """Stored results of one contender: the original or a pruned model."""

    absent: str  # reason why there is no such model
    parameters: int
    summary: str
    arch: dict[str, object]
    sizes: dict[str, object]
    loss_before: float
    loss_after: float
    heal_cpu_s: float
    predicted: Mapping[str, Sequence[float]]
    measured: dict[str, float]
    clean: bool
    reasons: list[str]
    runtime_version: str
    bits_per_byte: float
    tasks: dict[str, dict[str, object]]  # fields of a :class:`TaskScore`
    judged: list[object]  # identity of the weights and tasks to which the last two fields belong


class Known(TypedDict, total=False):
    """Contents of ``state/contenders.json``."""

    contenders: Required[dict[str, Contender]]
    basis: dict[str, object]
    spent: dict[str, float]
    power: dict[str, float]  # sums of the ledger's power meter
    data: Mapping[str, object]
    space: dict[str, object]
    bars: dict[str, object]
    steps: int
    finished: bool


def read_known(path: Path) -> Known:
    """Reads a run's ``state/contenders.json``; without the file, the result is empty."""
    held: Any = read_mapping(path) if path.exists() else {"contenders": {}}
    found: Known = held
    return found


CUT: Method = "exact"  # method by which the contender that may win is chosen
NUMBERS = {"original": 0, "exact": 1, "truncate": 2}  # trial numbers


def values_of(found: Contender) -> dict[str, float]:
    """All known metrics of a contender, by name."""
    values = dict(found.get("measured", {})) | {"parameters": float(found["parameters"])}
    if "bits_per_byte" in found:
        values["bits_per_byte"] = found["bits_per_byte"]
    for name, score in _scores(found).items():
        if score.value is not None:
            values[f"{score.metric}@{name}"] = score.value
    return values


def constraints_of(spec: StartSpec, contenders: Mapping[str, Contender]) -> tuple[Constraint, ...]:
    """The constraints in SI units.

    Constraints that are shares of the original's values are left out until these values are known.
    """
    original = contenders.get("original")
    return spec.limits({} if original is None else values_of(original) | {f"spearman@{ORIGINAL}": 1.0})


def broken_limits(spec: StartSpec, contenders: Mapping[str, Contender]) -> list[Constraint]:
    """The constraints that the known values of the pruned model break."""
    return broken(constraints_of(spec, contenders), values_of(contenders[CUT]))


def make_record(spec: StartSpec, known: Known) -> rec.RunRecord:
    """The record of a run's current state; ``known`` is the content of ``state/contenders.json``."""
    contenders = known["contenders"]
    machine = detect()
    there = {name: found for name, found in contenders.items() if "parameters" in found}
    limits = constraints_of(spec, there)
    steps, spent = known.get("steps"), dict(known.get("spent", {}))
    return rec.RunRecord(
        name=spec.name,
        created=now(),
        version=version("chipwise"),
        status="finished" if known.get("finished") else "partial",
        seed=spec.seed,
        target=rec.Target(
            device=spec.target.device,
            runtime=spec.target.runtime,
            cpu=machine.cpu,
            cores=machine.cores,
            runtime_version=next((f["runtime_version"] for f in there.values() if "runtime_version" in f), None),
            threads=spec.target.threads,
        ),
        workload=spec.workload,
        constraints=limits,
        budget=rec.Budget(
            cpu_s=spec.budget.cpu_s,
            spent=spent,
            footprint=footprint(spent, cpu=machine.cpu, measured=known.get("power", {}), carbon=spec.carbon),
        ),
        space=build(rec.SpaceSummary, known.get("space", {"size": 0}), field="space"),
        data=build(rec.DataSummary, known["data"], field="data") if "data" in known else None,
        trials=tuple(_trial(spec, name, found, limits) for name, found in there.items()),
        winner=NUMBERS[CUT] if known.get("finished") else None,
        baseline=NUMBERS["truncate"] if "truncate" in there else None,
        start=None
        if "original" not in there
        else rec.Start(
            source=spec.start_from,
            original=NUMBERS["original"],
            method="exact",
            steps=steps,
            distances={
                str(NUMBERS[name]): (found["loss_before"], found["loss_after"])
                for name, found in there.items()
                if "loss_after" in found
            },
        ),
        tasks=tuple(_tasks(there, Record(known.get("bars", {})))),
        notes=tuple(_notes(contenders)),
    )


def _trial(spec: StartSpec, name: str, found: Contender, limits: tuple[Constraint, ...]) -> rec.Trial:
    values = values_of(found)
    known = [item for item in limits if item.metric in values]
    return rec.Trial(
        number=NUMBERS[name],
        state="measured" if "measured" in found else "trained",
        summary=found["summary"],
        weights=spec.weights,
        choices=dict(found.get("sizes", {})),
        parameters=found["parameters"],
        quantised_loss=found.get("bits_per_byte"),
        train_cpu_s=found.get("heal_cpu_s"),
        predicted=intervals_of(found.get("predicted", {})),
        measured=found.get("measured"),
        tasks=_scores(found),
        clean=found.get("clean"),
        feasible=not broken(known, values) if len(known) == len(limits) else None,
        reason="; ".join(found.get("reasons", ())) or None,
    )


def _scores(found: Contender) -> dict[str, rec.TaskScore]:
    return {task: score_of(result) for task, result in found.get("tasks", {}).items()}


def _tasks(there: Mapping[str, Contender], bars: Record) -> list[TaskSummary]:
    results = [Record(found.get("tasks", {})) for found in there.values()]
    return [
        TaskSummary(
            name=name,
            classes=next(
                (tuple(names) for each in results if (names := each.record(name).sequence("classes", str))), ()
            ),
            bar=score_of(bars.record(name).data) if name in bars else None,
        )
        for name in dict.fromkeys(name for each in results for name in each)
    ]


def _notes(contenders: Mapping[str, Contender]) -> list[str]:
    notes = [found["absent"] for found in contenders.values() if "absent" in found]
    loud = [name for name, found in contenders.items() if found.get("clean") is False]
    if loud:
        notes.append(
            f"the machine was busy while it measured {', '.join(loud)}; all models were measured in alternation, so "
            "compare their times as shares of the original's time, not in seconds"
        )
    return notes

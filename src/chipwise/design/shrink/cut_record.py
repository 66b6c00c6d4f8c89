"""Builds the record of a run from a pretrained model, which its report shows. Works at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from chipwise.design.limits import Constraint, broken
from chipwise.design.phases.run_record import intervals_of, score_of
from chipwise.design.report import record as rec
from chipwise.design.report.record import TaskSummary
from chipwise.design.run.start_spec import ORIGINAL, StartSpec
from chipwise.design.run.trials import now
from chipwise.hardware.detect import detect

NUMBERS = {"original": 0, "exact": 1, "shared": 1, "truncate": 2}  # trials


def values_of(found: Mapping[str, Any]) -> dict[str, float]:
    """Every metric that is known of a contender."""
    values = dict(found.get("measured", {})) | {"parameters": float(found["parameters"])}
    if "bits_per_byte" in found:
        values["bits_per_byte"] = found["bits_per_byte"]
    for name, result in found.get("tasks", {}).items():
        if "value" in result:
            values[f"{result['metric']}@{name}"] = result["value"]
    return values


def constraints_of(spec: StartSpec, contenders: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """The run's constraints in SI units; shares only if their references are known."""
    original = contenders.get("original")
    return spec.limits({} if original is None else values_of(original) | {f"spearman@{ORIGINAL}": 1.0})


def broken_limits(spec: StartSpec, contenders: Mapping[str, Any]) -> list[Constraint]:
    """The constraints that the cut is known to break."""
    return broken(constraints_of(spec, contenders), values_of(contenders[spec.method]))


def make_record(spec: StartSpec, known: Mapping[str, Any]) -> rec.RunRecord:
    """The current record of a run; ``known`` is the content of ``state/contenders.json``."""
    contenders: dict[str, dict[str, Any]] = known["contenders"]
    machine = detect()
    there = {name: found for name, found in contenders.items() if "parameters" in found}
    limits = constraints_of(spec, there)
    steps = known.get("steps")
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
        budget=rec.Budget(cpu_s=spec.budget.cpu_s, spent=dict(known.get("spent", {}))),
        space=rec.SpaceSummary(**known.get("space", {"size": 0})),
        data=rec.DataSummary(**known["data"]) if "data" in known else None,
        trials=tuple(_trial(spec, name, found, limits) for name, found in there.items()),
        winner=NUMBERS[spec.method] if known.get("finished") else None,
        baseline=NUMBERS["truncate"] if "truncate" in there else None,
        start=None
        if "original" not in there
        else rec.Start(
            source=spec.start_from,
            original=NUMBERS["original"],
            method=spec.method,
            steps=steps,
            distances={
                str(NUMBERS[name]): (found["loss_before"], found["loss_after"])
                for name, found in there.items()
                if "loss_after" in found
            },
        ),
        tasks=tuple(_tasks(there, known.get("bars", {}))),
        notes=tuple(_notes(contenders)),
    )


def _trial(spec: StartSpec, name: str, found: Mapping[str, Any], limits: tuple[Constraint, ...]) -> rec.Trial:
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
        tasks={task: score_of(result) for task, result in found.get("tasks", {}).items()},
        clean=found.get("clean"),
        feasible=not broken(known, values) if len(known) == len(limits) else None,
        reason="; ".join(found.get("reasons", ())) or None,
    )


def _tasks(there: Mapping[str, Any], bars: Mapping[str, Any]) -> list[TaskSummary]:
    names = list(dict.fromkeys(name for found in there.values() for name in found.get("tasks", {})))
    return [
        TaskSummary(
            name=name,
            classes=next(
                (tuple(c) for f in there.values() if (c := f.get("tasks", {}).get(name, {}).get("classes"))), ()
            ),
            bar=None if name not in bars else score_of(bars[name]),
        )
        for name in names
    ]


def _notes(contenders: Mapping[str, Any]) -> list[str]:
    notes = [found["absent"] for found in contenders.values() if "absent" in found]
    loud = [name for name, found in contenders.items() if found.get("clean") is False]
    if loud:
        notes.append(
            f"the machine was busy while it measured {', '.join(loud)}; all were measured in turns, so compare "
            "shares of the original's, not seconds"
        )
    return notes

"""Builds the record of a run, finished or not, from its folder and study; reports are made from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.core.record import Record
from chipwise.design.phases.alignment import alignment
from chipwise.design.phases.finals import chances
from chipwise.design.phases.limits import penalty_factor, within
from chipwise.design.phases.other_devices import AcrossDevices, OtherDevices
from chipwise.design.phases.trainings import charged
from chipwise.design.phases.widening import said as said_of_space
from chipwise.design.report import record as rec
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.footprint import footprint
from chipwise.design.run.ledger import power_of
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, Trials, now
from chipwise.design.strategies.pareto import knee, non_dominated
from chipwise.design.strategies.study import Study
from chipwise.design.targets.chance import Bounds, values_of
from chipwise.design.targets.target import Target
from chipwise.hardware.detect import detect
from chipwise.hardware.device import MachineProfile
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.prompt_spread import said

Factor = Callable[[Candidate], float]  # factor on a candidate's loss


def make_record(
    spec: RunSpec,
    study: Study,
    trials: Trials,
    space: SearchSpace,
    folder: RunFolder,
    target: Target | None = None,
    *,
    others: OtherDevices | None = None,
) -> rec.RunRecord:
    """The current record of a run; ``target`` is None if it is not open yet."""
    others = OtherDevices(spec, space) if others is None else others
    memory, items = Record(study.memory), trials.all()
    winner, baseline = memory.get("winner", int, None), memory.get("baseline", int, None)
    profile = MachineProfile.load(folder.profile) if folder.profile.exists() else None
    factor = penalty_factor(spec, others.predict)
    front = _front(spec, items, factor)
    screened = memory.record("screened")
    samples = memory.record("samples")
    said = samples.records("continuations") or memory.records("continuations")
    answer = build(rec.Answer, rec.shown_of_answer(memory.record("answer").data), field="answer")
    knee = answer.knee if answer.knee is not None else _knee(spec, front, factor)
    aligned = None
    if target is not None and winner is not None:
        aligned = alignment(trials[winner].design, target, spec.target.sheet)
    return rec.RunRecord(
        name=spec.name,
        created=now(),
        version=version("chipwise"),
        status="finished" if winner is not None else "partial",
        stopped=None if winner is not None else memory.get("stopped", str, None),
        seed=spec.seed,
        task=spec.task,
        target=_target(spec, items, profile, target),
        workload=spec.workload,
        constraints=(*spec.limits, *spec.limits_elsewhere),
        objectives=spec.goals,
        budget=_budget(spec, memory.data, items, power_of(folder.spent)),
        space=rec.SpaceSummary(
            size=space.size(),
            choices=plain(spec.space),
            priced=screened.get("priced", int, None),
            priced_per_s=screened.get("priced_per_s", float, None),
            feasible_share=screened.get("feasible_share", float, None),
            widened=(wider := _widened(folder, memory)),
            aligned=aligned,
        ),
        data=build(rec.DataSummary, memory.record("data").data, field="data") if "data" in memory else None,
        trials=tuple(_trial(spec, item, others) for item in items),
        winner=winner,
        baseline=baseline,
        knee=knee,
        front=tuple(item.number for item in front),
        promised_measured=tuple(_promises(items)),
        launch_overhead_s=None if profile is None else profile.terms.get("elementwise.mul", {}).get("node"),
        answer=answer,
        tasks=tuple(_tasks(spec, items, memory.record("bars").data)),
        test=build(rec.TestScore, memory.record("test").data, field="test") if "test" in memory else None,
        samples={name: value for name, value in samples.data.items() if name != "continuations"},
        law=_law(memory.data),
        continuations=tuple(build(rec.Continuation, item.data, field="continuations") for item in said),
        elsewhere=()
        if target is None
        else tuple(_elsewhere(spec, space, items, target, others, (winner, baseline, knee))),
        notes=(
            *_notes(spec, items, profile),
            *([wider] if wider else []),
            *([aligned] if aligned else []),
            *_past(memory),
            *memory.sequence("kit_notes", str),
        ),
    )


def _widened(folder: RunFolder, memory: Record) -> str | None:
    """Sentence on the values that were added to the space of the run file, and why; None if none were added."""
    added = memory.get("widened", dict[str, list[int]], {})
    if not added or not isinstance(folder.spec, RunSpec):
        return None
    return said_of_space(folder.spec.space, added, memory.get("widened_gain", float))


def _past(memory: Record) -> Iterator[str]:
    """Yields notes: how many training runs of earlier searches this run used, and why its own runs were not stored."""
    if count := len(memory.sequence("past", list[object])):
        yield f"the run began with {count} training run{'s' if count > 1 else ''} of earlier searches (chipwise prior)"
    if reason := memory.get("not_stored", str, None):
        yield reason


def _budget(
    spec: RunSpec, memory: Mapping[str, object], items: Sequence[Candidate], power: Mapping[str, float]
) -> rec.Budget:
    allowed, spent = spec.allowance, Record(memory).get("spent", dict[str, float], {})
    device = "gpu" if spec.train.trains_on == "cuda" else "cpu"
    cost = footprint(spent, cpu=detect().cpu, measured=power, carbon=spec.carbon)
    if allowed.whole:
        return rec.Budget(cpu_s=allowed.total, spent=spent, device=device, footprint=cost)
    used = charged(items, allowed)
    return rec.Budget(
        spent=spent, unit=allowed.unit, allowed=allowed.total, charged=used, device=device, footprint=cost
    )


def _law(memory: Mapping[str, object]) -> rec.ByLaw | None:
    """The stored result of a search by a scaling law; None if the search trains."""
    if "law" not in memory:
        return None
    plan = memory.get("plan")
    line = plan.get("headline") if isinstance(plan, Mapping) else None
    return build(rec.ByLaw, {**Record(memory).record("law").data, "plan": line}, field="law")


def _target(spec: RunSpec, items: list[Candidate], profile: MachineProfile | None, target: Target | None) -> rec.Target:
    if not spec.target.local:
        title = target.title if target is not None else spec.target.device
        return rec.Target(
            device=spec.target.device,
            runtime=spec.target.runtime,
            title=title,
            measures=target is not None and target.measures,
            confidence=spec.confidence_share,
        )
    machine = detect() if profile is None else profile.machine
    return rec.Target(
        device=spec.target.device,
        runtime=spec.target.runtime,
        cpu=machine.cpu,
        cores=machine.cores,
        runtime_version=next((i.notes.runtime_version for i in items if i.measured), None)
        or (profile.runtime_version if profile is not None else None),
        threads=spec.target.threads,
        confidence=spec.confidence_share if spec.targets else None,
        instructions=machine.instructions,
    )


def _trial(spec: RunSpec, item: Candidate, others: OtherDevices) -> rec.Trial:
    notes = item.notes
    last = item.rungs[-1] if item.rungs else None
    state: rec.State = "failed" if item.trial.state == "failed" else "measured" if item.measured else "priced"
    if state == "priced" and item.rungs:
        state = "trained"
    if item.trial.state == "failed" and not item.rungs and (notes.reason or "").startswith("set aside"):
        state = "pruned"
    reason = notes.reason or "; ".join(notes.unclean_because) or None
    return rec.Trial(
        number=item.number,
        state=state,
        summary=summary(item.design),
        weights=item.design.weights,
        rung=None if last is None else max(0, last.rung),
        choices=dict(notes.choices),
        parameters=item.design.arch.parameters(),
        loss=None if last is None else last.loss,
        perplexity=None if last is None else last.perplexity,
        quantised_loss=item.loss,
        test_loss=notes.test_loss,
        train_cpu_s=None if last is None else last.cpu_s,
        curve=tuple(
            rec.CurvePoint(cpu_s=float(p[0] or 0.0), tokens=int(p[1] or 0), train_loss=p[2], val_loss=p[3])
            for p in notes.curve
        ),
        predicted=intervals_of(notes.predicted),
        believed_now=intervals_of(notes.believed_now),
        measured=item.measured,
        measured_bounds={metric: (low, high) for metric, (low, high) in notes.measured_bounds.items()},
        tasks={name: score_of(result) for name, result in item.tasks.items()},
        clean=notes.clean,
        chances={**chances(spec, item), **others.chances(item.design)},
        feasible=within(spec.limits, item.known) and others.keeps_limits(item.design),
        reason=reason,
        started=notes.started,
        ended=notes.ended,
    )


def intervals_of(noted: Mapping[str, Sequence[float | None]]) -> dict[str, Predicted]:
    """Converts stored predictions to those of the record: metric -> value and bounds."""
    return {
        metric: Predicted(value=value, low=low, high=high)
        for metric, (value, low, high) in noted.items()
        if value is not None
    }


def score_of(result: Mapping[str, object]) -> rec.TaskScore:
    """Converts the stored result of a task to the record's :class:`~chipwise.design.report.record.TaskScore`."""
    if "failed" in result:
        return rec.TaskScore(failed=str(result["failed"]))
    known = {item.name: result[item.name] for item in fields(rec.TaskScore) if item.name in result}
    return build(rec.TaskScore, known, field="tasks")


def _tasks(spec: RunSpec, items: list[Candidate], bars: Mapping[str, object]) -> Iterator[rec.TaskSummary]:
    for task in spec.tasks:
        bar = Record(bars).record(task.label)
        known = [*(Record(item.tasks.get(task.label, {})) for item in items), bar]
        yield rec.TaskSummary(
            name=task.label,
            classes=next((tuple(names) for one in known if (names := one.sequence("classes", str))), ()),
            bar=score_of(bar.data) if bar.data else None,
        )


def _points(spec: RunSpec, items: list[Candidate], factor: Factor) -> tuple[list[Candidate], Float64Array]:
    """Candidates of known quality within the limits, and their objectives (minimised, with penalties), (n, m).

    Quality is the loss after training or, in runs that do not train, the loss that the law expects.
    """
    by_law, metric = spec.quality.chosen == "law", spec.task_settings.metric
    kept, rows = [], []
    for item in items:
        if (item.loss is None and not by_law) or not item.alive or item.is_reference:
            continue
        known = item.known
        if item.loss is not None:
            known[metric.name] = metric.shown(item.loss)
        if not within(spec.limits, known):
            continue
        kept.append(item)
        if item.loss is not None:
            known[metric.name] = metric.shown(item.loss * factor(item))
        rows.append([known[g.metric] * (1 if g.direction == "minimize" else -1) for g in spec.goals])
    return kept, np.array(rows).reshape(len(rows), len(spec.goals))


def _front(spec: RunSpec, items: list[Candidate], factor: Factor) -> list[Candidate]:
    kept, points = _points(spec, items, factor)
    return [item for item, on in zip(kept, non_dominated(points), strict=True) if on] if kept else []


def _knee(spec: RunSpec, front: list[Candidate], factor: Factor) -> int | None:
    kept, points = _points(spec, front, factor)
    if len(kept) < 3 or points.shape[1] < 2:
        return None
    found = knee(points)
    return None if found is None else kept[int(found)].number


def _elsewhere(
    spec: RunSpec,
    space: SearchSpace,
    items: list[Candidate],
    target: Target,
    others: OtherDevices,
    shown: tuple[int | None, ...],
) -> list[rec.Elsewhere]:
    """For each device of the run: costs of the trials ``shown``, and the trials on the device's front."""
    if not spec.targets:
        return []
    kept = [item for item in items if item.quality is not None and item.alive and item.row is not None]
    rows = space.canonical(np.array([item.row for item in kept], np.int64).reshape(len(kept), len(space.genes)))
    quality = np.array([item.quality for item in kept], float)
    targets = AcrossDevices(spec, space, others, target.metrics).targets
    fronts = targets.fronts(rows, quality, spec.task_settings.latency_metric)
    transfer = targets.transfer(rows, quality, spec.task_settings.latency_metric)
    here = f"{target.title} ({'calibrated' if target.measures else 'predicted'})"
    found = []
    for i, name in enumerate(targets.devices):
        sheet = others.sheets.get(name)
        contenders = {str(item.number): item for item in items if item.number in shown}
        predicted = {} if sheet is None else {key: sheet.predict(item.design) for key, item in contenders.items()}
        found.append(
            rec.Elsewhere(
                device=name,
                title=here if sheet is None else sheet.title,
                runtime=spec.target.runtime if sheet is None else others.runtimes[name],
                costs={
                    key: values_of(predicted[key]) if key in predicted else item.known
                    for key, item in contenders.items()
                },
                bounds={key: _intervals(each) for key, each in predicted.items()},
                front=tuple(kept[int(j)].number for j in fronts[name]),
                carried={} if not kept else dict(zip(targets.devices, transfer.fronts[i].tolist(), strict=True)),
                ranks=dict(zip(targets.devices, transfer.costs[i].tolist(), strict=True)),
            )
        )
    return found


def _intervals(predicted: Mapping[str, Bounds]) -> dict[str, tuple[float, ...]]:
    return {metric: (low, high) for metric, (_, low, high) in predicted.items() if low is not None and high is not None}


def _promises(items: list[Candidate]) -> list[rec.Promise]:
    return [
        rec.Promise(
            trial=item.number,
            metric=metric,
            promised=float(bounds[0]),
            low=bounds[1],
            high=bounds[2],
            measured=item.measured[metric],
        )
        for item in items
        if item.measured
        for metric, bounds in item.notes.predicted.items()
        if metric in item.measured and bounds[0] is not None
    ]


def _notes(spec: RunSpec, items: list[Candidate], profile: MachineProfile | None) -> list[str]:
    notes = []
    if spec.prompt_p99 is not None:
        notes.append(said(spec.workload.prompt_tokens, spec.prompt_p99))
    if profile is not None:
        notes += profile.check_errors.splitlines()
        notes += [*profile.notes]
    unclean = [item.number for item in items if item.notes.clean is False]
    if unclean:
        notes.append(f"measured on a busy machine, so not reliable: trials {', '.join(map(str, unclean))}")
    return notes

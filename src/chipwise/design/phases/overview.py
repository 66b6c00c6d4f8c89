"""Summarises a space before a search: size, example designs, share of designs within the limits, and extremes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.files import build, read_yaml
from chipwise.core.record import Record
from chipwise.deploy.measure.store import kept_as, profile_path
from chipwise.design.limits import USED, Constraint, parse_constraints
from chipwise.design.phases.screening import Metrics, excess, screen
from chipwise.design.prices.price_table import PriceTable
from chipwise.design.run.ranges import with_lists
from chipwise.design.run.spec import NO_SPACE, TargetSpec, varying_prompts
from chipwise.design.targets.chance import Bounds, values_of
from chipwise.design.targets.cost_model import CostModel, unknown_shares
from chipwise.design.targets.sheet import SheetTarget, stated
from chipwise.errors import Infeasible, InputError, SpecError, UnknownName
from chipwise.hardware import datasheet
from chipwise.hardware.device import MachineProfile
from chipwise.hardware.runtime import default_runtime, on_device, runtime_named
from chipwise.model.arch.design import Design
from chipwise.model.arch.layer import Layer
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.predict.served.prompt_spread import check_prompts
from chipwise.training.tasks.protocol import task_named

Progress = Callable[[str, float], None]
Predict = Callable[[Design], Mapping[str, Bounds]]
MOST_DRAWS, MOST_SAMPLES = 10_000_000, 1_000
_STARTS = 4  # starting points of hill climbing per extreme
_CLIMB = 60  # most steps; each step changes the choice that helps most
_CLIMB_ROWS = 40_000  # approximate rows evaluated per extreme; large spaces get fewer starts and steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example design with its choices and costs, and with 90 % intervals where they are known."""

    summary: str
    choices: Mapping[str, object]
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """Of all designs found, those with the smallest and the largest value of a metric."""

    metric: str
    least: Example
    most: Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Summary of a search space; ``feasible_share`` is estimated from ``drawn`` uniformly sampled candidates.

    ``unjudged`` are the limits on metrics that cannot be predicted. If no candidate meets the other limits, ``closest``
    explains which of them are out of reach.
    """

    size: int
    choices: int
    priced_by: str | None
    drawn: int
    feasible_share: float | None
    unjudged: tuple[str, ...]
    closest: str | None
    samples: tuple[Example, ...]
    extremes: tuple[Extreme, ...]


def overview(
    space: SearchSpace,
    metrics: Metrics,
    constraints: Sequence[Constraint],
    *,
    priced_by: str | None,
    seed: int,
    draws: int = 100_000,
    samples: int = 5,
    predict: Predict = lambda design: {},
    progress: Progress = lambda what, share: None,
) -> Overview:
    """Summarises a search space.

    Args:
        space: The space.
        metrics: Computes, for encoded designs, a mapping from the metrics that are known without training to values.
        constraints: The limits; those on unknown metrics are listed but not checked.
        priced_by: Name of the device or profile that predicts the metrics, for display.
        seed: Random seed.
        draws: Number of random candidates from which the share within the limits and the extremes are estimated.
        samples: Number of designs to show.
        predict: Returns each metric of a design with its interval; used for the designs that are shown.
        progress: Called with the phase and the finished share.
    """
    rng = np.random.default_rng(seed)
    progress("counting", 0.0)
    size = space.size()
    progress("drawing", 0.1)
    rows = space.sample(draws, rng)
    known = {name: np.asarray(values) for name, values in metrics(rows).items()}
    judged = tuple(item for item in constraints if item.metric in known)
    worst = excess(judged, known)
    share = float((worst <= 0).mean()) if judged else None
    closest = None
    if share == 0.0:
        progress("looking for a candidate within the limits", 0.3)
        try:
            screen(space, metrics, judged, seed=seed, draws=draws, wanted=1)
            closest = f"none of {draws:,} random candidates meets the limits, but evolution found some that do"
        except Infeasible as error:
            closest = str(error)
    extremes = []
    for i, name in enumerate(known):
        progress(f"extremes of {name}", 0.4 + 0.6 * i / len(known))
        ends = [_climbed(space, metrics, name, rows, known[name], sign) for sign in (1.0, -1.0)]
        examples = [_example(space, metrics, predict, end) for end in ends]
        least, most = sorted(examples, key=lambda item: item.metrics[name])
        extremes.append(Extreme(metric=name, least=least, most=most))
    picked = np.flatnonzero(worst <= 0) if share else np.arange(len(rows))
    shown = rows[rng.choice(picked, min(samples, len(picked)), replace=False)]
    progress("done", 1.0)
    return Overview(
        size=size,
        choices=len(space.genes),
        priced_by=priced_by,
        drawn=draws,
        feasible_share=share,
        unjudged=tuple(f"{item.metric} {item.text}" for item in constraints if item.metric not in known),
        closest=closest,
        samples=tuple(_example(space, metrics, predict, row) for row in shown),
        extremes=tuple(extremes),
    )


def _example(space: SearchSpace, metrics: Metrics, predict: Predict, row: NDArray[np.int64]) -> Example:
    design = space.design(row)
    found = {name: float(values[0]) for name, values in metrics(row[None]).items()}
    own = {name: bounds for name, bounds in predict(design).items() if name in found}
    return Example(
        summary=summary(design),
        choices=space.choices(row),
        metrics=found | values_of(own),
        intervals={
            name: (low, high)
            for name, (_, low, high) in own.items()
            if low is not None and high is not None and low < high
        },
    )


def _climbed(
    space: SearchSpace, metrics: Metrics, name: str, rows: Rows, values: NDArray[np.float64], sign: float
) -> NDArray[np.int64]:
    """The row that minimises ``sign`` × metric, found by hill climbing from the best random rows."""
    best: NDArray[np.int64] = rows[0]
    reached = np.inf
    around_each = int(space.cardinalities.sum())
    starts = max(1, min(_STARTS, _CLIMB_ROWS // (_CLIMB * around_each)))
    steps = max(3, min(_CLIMB, _CLIMB_ROWS // around_each))
    for start in np.argsort(sign * values, kind="stable")[:starts]:
        row, value = rows[start], sign * values[start]
        for _ in range(steps):
            around = _neighbours(space, row)
            theirs = sign * metrics(around)[name]
            pick = int(np.argmin(theirs))
            if not theirs[pick] < value:
                break
            row, value = around[pick], theirs[pick]
        if value < reached:
            best, reached = row, value
    return best


def _neighbours(space: SearchSpace, row: NDArray[np.int64]) -> Rows:
    """``row`` with each gene in turn set to each of its values."""
    found = []
    for column, cardinality in enumerate(space.cardinalities.tolist()):
        around = np.repeat(row[None], cardinality, axis=0)
        around[:, column] = np.arange(cardinality)
        found.append(around)
    return space.canonical(np.vstack(found))


def overview_of(
    file: str | Path,
    *,
    profile: Path | None = None,
    device: str | None = None,
    runtime: str | None = None,
    seed: int = 0,
    draws: int = 100_000,
    samples: int = 5,
    progress: Progress = lambda what, share: None,
) -> Overview:
    """Summarises the space of a run file, or of a file that contains only a space.

    Args:
        file: The file.
        profile: A calibrated profile of this machine, if there is one.
        device: Device whose data sheet predicts costs, as in ``chipwise estimate``. Default: the target in the file.
        runtime: The runtime on that device. Default: the device's default runtime.
        seed: Random seed.
        draws: Number of random candidates.
        samples: Number of designs to show.
        progress: Called with the phase and the finished share.

    Raises:
        SpecError: The file is invalid, or its space is empty or contradictory.
        UnknownName: There is no data sheet for the device.
        Unsupported: The device does not have the runtime, or the runtime has no format for the space's weights.
    """
    whole, alone = _read(file)
    try:
        asked = task_named(str(whole.get("task", "text")))
    except UnknownName as error:
        raise SpecError(str(error), file=str(file), field="task") from None
    whole = {**asked.defaults, **whole}
    try:
        target = build(TargetSpec, whole.get("target", {}), field="target")
        space = _space(whole["space"], None if alone else "space", target)
        whole = {**whole, **varying_prompts(Record(whole).record("workload").data)}
        prompt_p99 = Record(whole).get("prompt_p99", int, None)
        workload = build(Workload, whole.get("workload", {}), field="workload")
        if prompt_p99 is not None:
            check_prompts(workload.prompt_tokens, prompt_p99, "workload.prompt_tokens")
        constraints = parse_constraints(Record(whole).record("constraints").data, tasks=None, quality=asked.metric)
    except SpecError as error:
        raise error.inside(file=str(file)) from None
    if not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"draws must be from 1 to {MOST_DRAWS:,}, not {draws:,}")
    if not 0 <= samples <= MOST_SAMPLES:
        raise InputError(f"samples must be from 0 to {MOST_SAMPLES:,}, not {samples:,}")
    progress("pricing the blocks", 0.0)
    if device is None and target.sheet is not None:
        device = target.device
    if runtime is not None and device is None:
        raise InputError("--runtime needs a device; name it with --device")
    metrics, predict, priced_by = _metrics(
        space, workload, profile, device, runtime, target, seed=seed, prompt_p99=prompt_p99
    )
    return overview(
        space,
        metrics,
        constraints,
        priced_by=priced_by,
        seed=seed,
        draws=draws,
        samples=samples,
        predict=predict,
        progress=progress,
    )


def _read(file: str | Path) -> tuple[Mapping[str, object], bool]:
    """The fields of a run file, and whether the file contains nothing but a space."""
    data = read_yaml(file)
    if "start_from" in data:
        raise SpecError(NO_SPACE, file=str(file), field="start_from")
    alone = "d_model" in data
    if "space" not in data and not alone:
        raise SpecError("this field is missing", file=str(file), field="space")
    return ({"space": data} if alone else data), alone


def profile_of(file: str | Path) -> Path:
    """Path of this machine's profile for models like those of a run file, and for its target's runtime and threads.

    Raises:
        SpecError: The file is invalid.
    """
    whole, _ = _read(file)
    target = build(TargetSpec, whole.get("target", {}), file=str(file), field="target")
    space = whole["space"] if isinstance(whole["space"], Mapping) else {}
    kinds = {"image": "images", "ranking": "ranking", "sentence": "images", "sound": "sounds"}
    kind = next((kinds[name] for name in kinds if name in space), "")
    return profile_path(kept_as(target.runtime, kind), target.threads)


def _space(data: object, field: str | None, target: TargetSpec) -> SearchSpace:
    try:
        listed = with_lists(data, target.sheet) if isinstance(data, Mapping) else data
    except SpecError as error:
        raise error.inside(field=field) from None
    spec = build(SpaceSpec, listed, field=field)
    try:
        return SearchSpace(spec)
    except SpecError as error:
        raise error.inside(field=field) from None


def _metrics(
    space: SearchSpace,
    workload: Workload,
    profile: Path | None,
    device: str | None,
    runtime: str | None,
    target: TargetSpec,
    *,
    seed: int,
    prompt_p99: int | None,
) -> tuple[Metrics, Predict, str | None]:
    if device is not None:
        sheet, served = _served(device, runtime, target)
        energy = not space.spec.kind.one_pass
        priced = SheetTarget(
            space, sheet, served=served, workload=workload, seed=seed, energy=energy, used=True,
            prompt_p99=prompt_p99, ambient_c=target.ambient_c,
        )  # fmt: skip
        return priced.metrics, priced.predict, f"{sheet.title}, {served.runtime} (predicted, as chipwise estimate does)"
    if profile is not None and profile.exists():
        machine = MachineProfile.load(profile)
        known = set() if space.spec.kind.one_pass else set(USED) - unknown_shares(space, machine).keys()
        costing = CostModel(space, workload, machine, rates=target.rates, prompt_p99=prompt_p99, used=known)
        title = f"{machine.machine.name}, {machine.runtime} {machine.runtime_version} (calibrated)"
        return costing.metrics, costing.predict, title
    table = PriceTable(space, workload, _Counting())
    return lambda rows: {"parameters": table(rows).parameters}, lambda design: {}, None


def _served(device: str, runtime: str | None, target: TargetSpec) -> tuple[datasheet.DeviceProfile, TargetSpec]:
    """The data sheet, and the target: the file's target if it is the same device, else one with default settings."""
    sheet = datasheet.load(device)
    stated_there = target.sheet is not None and target.sheet.name == sheet.name
    if stated_there and runtime in (None, target.runtime):
        return stated(target), target
    named = default_runtime(sheet) if runtime is None else runtime
    on_device(runtime_named(named), sheet)
    return sheet, TargetSpec(device=device, runtime=named)


class _Counting:
    """Stands in for a cost model if no machine is known: all times and bytes are 0, only parameters are counted."""

    def pass_columns(self, design: Design, workload: Workload, phase: Phase) -> NDArray[np.float64]:
        return np.zeros(1)

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        return np.zeros(len(prefill)), np.zeros(len(decode))

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        return 0.0

    def activation_bytes(self, layer: Layer | None, design: Design, workload: Workload) -> float:
        return 0.0

    def base_bytes(self) -> float:
        return 0.0

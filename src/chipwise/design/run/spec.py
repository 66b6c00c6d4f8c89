"""Defines and checks the specification of a search, which its YAML file states."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from chipwise.core import units
from chipwise.core.digest import digest, plain
from chipwise.core.fields import convert, later, positive
from chipwise.core.files import build, read_mapping, read_yaml
from chipwise.design.limits import (
    DERIVED,
    METRICS,
    PER_TOKEN,
    SPENDING,
    USED,
    Constraint,
    Objective,
    derived,
    is_cost,
    parse_constraints,
    parse_objectives,
)
from chipwise.design.run.budget_spec import Allowance, BudgetSpec, allowance
from chipwise.design.run.ranges import with_lists
from chipwise.design.strategies.algorithms import STRATEGIES
from chipwise.errors import SpecError, UnknownName, Unsupported, nearest
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import default_runtime, on_device, runtime_named
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import GROUPED, SpaceSpec
from chipwise.predict.cost.ownership import grams_per_kwh
from chipwise.predict.cost.spending import Rates, refused, require
from chipwise.predict.served.heat import USUAL_C, ambient_of, slowdown
from chipwise.predict.served.prompt_spread import check_prompts
from chipwise.training.evaluations.data import TASKS as EVALUATIONS
from chipwise.training.evaluations.data import Kind
from chipwise.training.laws.operators import NOTHING_KNOWN, OperatorPrior
from chipwise.training.tasks.protocol import TASKS, Task
from chipwise.training.trainers.train_spec import TrainSpec

LOCAL_RUNTIME = "onnxruntime"
DEFAULT = "default"  # runtime in a run file that names none
MOST_THREADS = 1024  # more cores than any tested machine
MOST_DEVICES = 1024
MOST_PLANNED = 1_000_000
EXPECTED_LOSS = "expected_loss"
FORMATS = ("fp32", "int8", "int4")  # formats in which trained weights are evaluated
CONFIDENCE = "90 %"
SHARED_SHARE = 0.25  # share of budget.cpu for training the supernet
_LATER = {  # fields added after the first release, each with the value that the first release implied
    "targets": [],
    "across": "worst",
    "profiling": "hybrid",
    "task": "text",
    "tasks": [],
    "quality": {"method": "auto", "budget": None},
    "confidence": CONFIDENCE,
}
_LATER_TARGET = {"power": None, "price": None, "tp": 1, "pp": 1, "kv": None, "like": None, "ambient": None}
NO_SPACE = "a run that cuts a model has no search space to show; start it with chipwise search"
ON_SHEETS = (
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "tpot_p99",
    "itl_p50",
    "itl_p99",
    "peak_memory",
    "throughput",
    *USED,
    "parameters",
    *SPENDING,
)  # metrics that a data sheet's table of predicted costs contains


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The device and runtime that will serve the winner.

    ``device`` is one of: ``local``, this machine, which is calibrated and measured; the name or file of a data sheet,
    or of a profile from ``chipwise teach`` or a calibration; or ``ssh:user@host``, a device that is measured over ssh
    and predicted by the data sheet in ``like``. ``power`` states the watts while serving, ``price`` the dollars per
    hour.
    """

    device: str = "local"
    runtime: str = DEFAULT  # onnxruntime on this machine, else the device's own, such as llama.cpp on a phone
    threads: int = 1
    power: str | float | None = None  # such as 15 W
    price: str | float | None = None  # such as 0.10 USD/h
    tp: int = 1  # tensor-parallel degree
    pp: int = 1  # pipeline stages
    kv: str | None = None  # KV-cache dtype; by default that of the activations
    like: str | None = None  # data sheet that predicts a device measured over ssh
    ambient: str | float | None = None  # temperature of the surroundings, for limits on sustained times

    def __post_init__(self) -> None:
        positive(self, "threads", most=MOST_THREADS)
        _ = self.rates, self.ambient_c
        if self.runtime == DEFAULT:
            object.__setattr__(self, "runtime", self._default_runtime())
        if self.local:
            for name, usual in (("tp", 1), ("pp", 1), ("kv", None), ("like", None)):
                if getattr(self, name) != usual:
                    raise SpecError("only valid if `device` names another machine; leave it out", field=name)
            return
        self._check_elsewhere()

    @property
    def local(self) -> bool:
        """Whether the winner is served on this machine."""
        return self.device == "local"

    @property
    def sheet(self) -> datasheet.DeviceProfile | None:
        """The data sheet from which the device's costs are predicted; None if a calibrated profile predicts them."""
        name = self.like if self.device.startswith("ssh:") else self.device
        return None if self.local or name is None or name.endswith(".json") else datasheet.load(name)

    @property
    def rates(self) -> Rates:
        """Stated watts and price."""
        return Rates(
            power_w=None if self.power is None else _positive(self.power, "power", "power"),
            usd_per_s=None if self.price is None else _positive(self.price, "price_rate", "price"),
        )

    @property
    def ambient_c(self) -> float | None:
        """Ambient temperature in degrees Celsius, if stated."""
        return None if self.ambient is None else ambient_of(self.ambient)

    def _default_runtime(self) -> str:
        if self.local or self.device.endswith(".json") or self.device.startswith("ssh:"):
            return LOCAL_RUNTIME
        return default_runtime(self.named_sheet())

    def named_sheet(self) -> datasheet.DeviceProfile:
        """The data sheet of the device.

        Raises:
            SpecError: There is no data sheet of this name.
        """
        try:
            sheet = self.sheet
        except UnknownName as error:
            field = "like" if self.device.startswith("ssh:") else "device"
            raise SpecError(f"{error}; `local` means this machine", field=field) from None
        assert sheet is not None
        return sheet

    def _check_elsewhere(self) -> None:
        if self.device.startswith("ssh:"):
            if self.like is None:
                raise SpecError(
                    "name the data sheet of the most similar device, such as `like: raspberry-pi-5` "
                    "(`chipwise devices` lists all sheets); it predicts the candidates until they are measured",
                    field="like",
                )
        elif self.like is not None:
            raise SpecError("only valid for a device measured over ssh; leave it out", field="like")
        if self.device.endswith(".json"):
            return
        sheet = self.named_sheet()
        try:
            on_device(runtime_named(self.runtime), sheet)
        except (UnknownName, Unsupported) as error:
            raise SpecError(str(error), field="runtime") from None
        for name in ("tp", "pp"):
            positive(self, name, most=MOST_DEVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlsoOn:
    """Another device that the winner should suit; costs on it are predicted from its data sheet, never measured.

    Predictions are those of ``chipwise estimate`` with ``runtime`` (by default the device's own). ``weight`` is the
    device's weight if costs are averaged over devices. Limits may be on times, memory and parameters, and also on
    power, energy and price if the data sheet has the figures for them.
    """

    device: str
    weight: float = 1.0
    constraints: Mapping[str, object] = field(default_factory=dict)
    runtime: str = later(DEFAULT)

    def __post_init__(self) -> None:
        sheet = self.sheet
        _ = self.target
        if not self.weight > 0:
            raise SpecError(f"must be above zero, not {self.weight}", field="weight")
        for limit in self.limits:
            if limit.metric not in ON_SHEETS:
                raise SpecError(
                    f"data sheets do not predict this metric; {nearest(limit.metric, ON_SHEETS)}",
                    field=f"constraints.{limit.metric}",
                )
            if limit.metric in SPENDING:
                _told(sheet, limit.metric, f"constraints.{limit.metric}")

    @property
    def sheet(self) -> datasheet.DeviceProfile:
        """The data sheet."""
        try:
            return datasheet.load(self.device)
        except UnknownName as error:
            raise SpecError(str(error), field="device") from None

    @property
    def target(self) -> TargetSpec:
        """The device and its runtime as a :class:`TargetSpec`."""
        return TargetSpec(device=self.device, runtime=self.runtime)

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints, parsed."""
        return parse_constraints(self.constraints)

    @property
    def limits_there(self) -> tuple[Constraint, ...]:
        """The limits on this device; their metrics are named ``metric@device``."""
        return tuple(replace(limit, metric=f"{limit.metric}@{self.sheet.name}") for limit in self.limits)


def _told(sheet: datasheet.DeviceProfile, metric: str, field: str) -> None:
    try:
        require(sheet, metric)
    except Unsupported as error:
        raise SpecError(str(error), field=field) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySpec:
    """How candidates are evaluated before the final training runs.

    ``short-training`` trains many candidates briefly and the best of them for longer; ``supernet`` first trains a
    supernet and uses its scores as a prior; ``proxy`` ranks candidates by the scaling law and trains only the
    finalists; ``auto`` is ``short-training``, which was best in measurements (docs/notes/judging.md).

    The method ``law`` trains nothing: it ranks designs by the loss that a scaling law expects after training on
    ``budget.tokens`` tokens, and the winner gets a training plan.

    The field ``budget`` is the CPU time for training the supernet. The field ``law`` names a CSV file with training
    runs of your own, which update the shipped law. ``plan_device`` and ``plan_devices`` are the device, and the number
    of devices, in the winner's training plan.
    """

    method: Literal["auto", "supernet", "short-training", "proxy", "law"] = "auto"
    budget: str | float | None = None
    law: str | None = later(None)
    plan_device: str = later("h100-sxm")
    plan_devices: int = later(8)

    def __post_init__(self) -> None:
        if self.budget is not None:
            _positive(self.budget, "duration", "budget")
            if self.method != "supernet":
                raise SpecError("only `method: supernet` takes a budget here; leave it out", field="budget")
        usual = (None, "h100-sxm", 8)
        for name, unset in zip(("law", "plan_device", "plan_devices"), usual, strict=True):
            if self.method != "law" and getattr(self, name) != unset:
                raise SpecError("only valid for `method: law`; leave it out", field=name)
        positive(self, "plan_devices", most=MOST_PLANNED)
        try:
            datasheet.load(self.plan_device)
        except UnknownName as error:
            raise SpecError(str(error), field="plan_device") from None

    @property
    def chosen(self) -> str:
        """The method that is used; ``auto`` is replaced with the method that it stands for."""
        return "short-training" if self.method == "auto" else self.method

    def shared_s(self, cpu_s: float) -> float:
        """CPU seconds of the total budget ``cpu_s`` that are spent on training the supernet; 0 without a supernet."""
        if self.chosen != "supernet":
            return 0.0
        return SHARED_SHARE * cpu_s if self.budget is None else _positive(self.budget, "duration", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task on which finalists are evaluated: the name of a shipped task, or a CSV or JSON Lines file.

    The path of a file is relative to the run file's folder. In constraints, the task's name is the file's name without
    its suffix.
    """

    name: str | None = None
    file: str | None = None
    kind: Kind | None = None  # kind of the labels in a file; None: detected

    def __post_init__(self) -> None:
        if (self.name is None) == (self.file is None):
            raise SpecError("give either the name of a shipped task or a file", field="name")
        if self.name is not None and self.name not in EVALUATIONS.names():
            known = [*EVALUATIONS.names(), "or a .csv or .jsonl file"]
            raise SpecError(f"unknown task {self.name!r}; {nearest(self.name, known)}", field="name")
        if self.name is not None and self.kind is not None:
            raise SpecError("only valid for a file; leave it out", field="kind")
        if self.file is not None and Path(self.file).suffix.lower() not in (".csv", ".jsonl"):
            raise SpecError(f"{self.file!r} is neither .csv nor .jsonl", field="file")

    @property
    def label(self) -> str:
        """Name of the task in constraints and reports."""
        return self.name if self.name is not None else Path(str(self.file)).stem

    def where(self, base: str | Path) -> str:
        """The shipped task's name, or the file's path relative to ``base``."""
        return self.name if self.name is not None else str(Path(base) / str(self.file))


def _positive(text: object, kind: str, field: str) -> float:
    value = units.parse_field(text, kind, field)
    if value <= 0:
        raise SpecError(f"must be positive, not {text}", field=field)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """The strategy that chooses which candidates to train; ``auto`` is the strategy that chipwise itself provides."""

    strategy: str = "auto"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES.names():
            raise SpecError(f"unknown strategy; {nearest(self.strategy, STRATEGIES.names())}", field="strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Specification of one search. :func:`load_run` and :func:`run_spec` build it and check every field."""

    name: str
    workload: Workload
    space: SpaceSpec
    task: str = "text"  # task of the models: a name in the table of training/tasks/protocol.py
    data: Mapping[str, object] = field(default_factory=dict)  # required if anything is trained
    target: TargetSpec = field(default_factory=TargetSpec)
    constraints: Mapping[str, object] = field(default_factory=dict)
    objectives: Mapping[str, str] = field(default_factory=lambda: {"bits_per_byte": "minimize", "tpot_p50": "minimize"})
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    search: StrategySpec = field(default_factory=StrategySpec)
    targets: tuple[AlsoOn, ...] = ()
    across: Literal["worst", "weighted"] = "worst"  # how objectives in seconds are combined over devices
    profiling: Literal["simulated", "measured", "hybrid"] = (
        "hybrid"  # which candidates are measured before they are trained further
    )
    tasks: tuple[TaskSpec, ...] = ()  # tasks on which finalists and the reference design are evaluated at the end
    quality: QualitySpec = field(default_factory=QualitySpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    confidence: str | float = CONFIDENCE  # probability with which limits on predictions must hold
    prompt_p99: int | None = later(None)  # P99 of prompts that vary; written workload: {prompt_tokens: {p50, p99}}
    quantiser: Literal["auto", "nearest", "searched", "gptq"] = later("auto")  # how finalists' weights are rounded
    prior: Literal["auto", "shipped", "none"] = later("auto")  # shipped: ignores earlier runs; none: without prior
    widen: Literal["auto", "never"] = later("never")  # auto: adds larger sizes if the best designs lie at the edge
    carbon: str | float | None = later(None)  # grams of CO2 of the grid's kilowatt-hour, such as 350 g/kWh
    seed: int = 0
    folder: str = "."  # folder of the run file, for relative data paths; not a field of the file

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or set("/\\") & set(self.name) or self.name[0] == ".":
            raise SpecError(f"{self.name!r} cannot name a folder; use letters, digits and dashes", field="name")
        if self.task not in TASKS:
            raise SpecError(f"unknown task {self.task!r}; {nearest(self.task, TASKS.names())}", field="task")
        if self.task != "text":
            self._check_trained_task()
        try:
            SearchSpace(self.space)
        except SpecError as error:
            raise error.inside(field="space") from None
        names = [item.device for item in self.targets]
        if len(set(names)) != len(names):
            raise SpecError(f"a device is listed twice in {names}; list each once", field="targets")
        if self.quality.chosen == "proxy" and self.search.strategy != "auto":
            raise SpecError(
                f"`quality: proxy` ignores search.strategy ({self.search.strategy}); remove one of them",
                field="quality.method",
            )
        labels = [item.label for item in self.tasks]
        if len(set(labels)) != len(labels):
            raise SpecError(f"two tasks have the same name in {labels}; rename one", field="tasks")
        _ = self.confidence_share
        if self.carbon is not None:
            grams_per_kwh(self.carbon, "carbon")
        if not 0 <= self.seed < 2**63:
            raise SpecError(f"must be at least 0 and below 2**63, not {self.seed}", field="seed")
        allowed = self.allowance
        if self.quality.chosen == "supernet" and not allowed.whole:
            raise SpecError(
                "the supernet is trained on this machine; give train: {on: local} and a budget of CPU time",
                field="quality.method",
            )
        if self.quality.chosen == "supernet" and {"norm", "norm_place"} & set(self.space.globals):
            raise SpecError(
                "models that share weights must all use one kind of norm in one place; give `norm` and "
                "`norm_place` one value each",
                field="space.norm",
            )
        if self.quality.chosen == "supernet" and set(self.space.layer.ffn) & set(GROUPED):
            raise SpecError(
                "a supernet cannot contain grouped feed-forwards, which share no weights with others; leave them out",
                field="space.layer.ffn",
            )
        self._require_known()
        by_law = self.quality.chosen == "law"
        metric = self.task_settings.metric
        sought, direction = (EXPECTED_LOSS, "minimize") if by_law else (metric.name, metric.direction)
        if [goal.direction for goal in self.goals if goal.metric == sought] != [direction]:
            raise SpecError(f"must contain {sought}: {direction}", field="objectives")
        if by_law:
            self._check_law()
        elif unknown := [name for name in self.space.formats if name not in FORMATS]:
            raise SpecError(
                f"models are evaluated and exported in {', '.join(FORMATS)}, not in {unknown[0]}; choose one of these "
                "(a data sheet's runtime stores them in its own formats), or `quality: law`, which trains nothing",
                field="space.weights",
            )
        self.task_settings.require_fit(self.workload, self.space)
        if self.prompt_p99 is not None:
            self._check_prompts(self.prompt_p99)

    def _check_trained_task(self) -> None:
        """Refuses fields that only searches for text models have."""
        if self.quality.chosen in ("supernet", "law"):
            raise SpecError(
                f"{self.quality.chosen} works for text only; choose short-training or proxy", field="quality.method"
            )
        if self.tasks:
            raise SpecError("these tasks evaluate text models only; leave them out", field="tasks")

    def _check_prompts(self, p99: int) -> None:
        """Refuses prompts of varying length if the task's requests have no prompts, or if the longest do not fit."""
        field = "workload.prompt_tokens"
        if self.task_settings.latency_metric not in PER_TOKEN:
            raise SpecError(f"all requests of {self.task} have the same size; write one number", field=field)
        check_prompts(self.workload.prompt_tokens, p99, field)
        self.task_settings.require_fit(replace(self.workload, prompt_tokens=p99), self.space)

    def _require_known(self) -> None:
        """Refuses invalid constraints and objectives, and metrics for which the target has no data."""
        limited = [(item.metric, "constraints") for item in self.limits]
        sought = [(item.metric, "objectives") for item in self.goals]
        for metric, where in (*limited, *sought):
            self._require_told(metric, f"{where}.{metric}")
        for metric, where in sought:
            for other in self.targets if metric in SPENDING else ():
                _told(datasheet.load(other.device), metric, f"{where}.{metric}")

    def _check_law(self) -> None:
        """Refuses fields that only searches with training have."""
        if self.budget.unit != "tokens":
            raise SpecError(
                "a law predicts the loss after a number of training tokens; state it, such as budget: {tokens: 300B}",
                field="budget",
            )
        if self.target.local:
            raise SpecError(
                "`quality: law` trains and measures nothing; name the data sheet of the device to design for, "
                "such as h100-sxm",
                field="target.device",
            )
        if self.space.norm_place != ("pre",) or len(self.space.norms) > 1:
            raise SpecError(
                "scaling laws describe models with one kind of norm, placed before blocks; choose "
                "`norm_place: pre` and one `norm`, or another quality.method",
                field="space.norm_place",
            )
        if set(self.space.layer.ffn) & set(GROUPED):
            raise SpecError(
                "scaling laws do not describe grouped feed-forwards; leave them out, or choose another quality.method",
                field="space.layer.ffn",
            )
        if "none" in (*self.space.layer.heads, *self.space.layer.ffn):
            raise SpecError(
                "scaling laws do not describe layers without a block; leave `none` out, or choose another "
                "quality.method",
                field="space.layer",
            )
        for name in ("tasks", "targets", "data"):
            if getattr(self, name):
                raise SpecError(
                    "`quality: law` trains nothing; leave this field out, or choose another quality.method", field=name
                )
        if self.search.strategy != "auto":
            raise SpecError(
                f"`quality: law` ignores search.strategy ({self.search.strategy}); remove one of them",
                field="search",
            )
        for limit in self.limits:
            if not limit.hard or not is_cost(limit.metric):
                raise SpecError(
                    "`quality: law` takes only hard limits on costs; leave this limit out or make it hard",
                    field=f"constraints.{limit.metric}",
                )

    def _require_told(self, metric: str, field: str) -> None:
        """Refuses a metric that the target cannot measure or predict, or that the task's requests do not have."""
        if self.task_settings.latency_metric not in PER_TOKEN and metric in PER_TOKEN:
            raise SpecError(
                f"a request of {self.task} is one pass that generates no token; use "
                f"{self.task_settings.latency_metric}",
                field=field,
            )
        if metric in DERIVED and metric not in derived(dict.fromkeys(METRICS, 1.0), self.space):
            lacking = DERIVED[metric].requires
            raise SpecError(
                f"a request of {self.task} holds no {lacking}; use {self.task_settings.latency_metric}", field=field
            )
        rates, sheet = self.target.rates, self.target.sheet
        if metric in SPENDING:
            if (rates.usd_per_s if metric == "usd_per_1k_tokens" else rates.power_w) is not None:
                return
            if sheet is None:
                raise SpecError(str(refused(metric)), field=field)
            _told(sheet, metric, field)
        elif metric == "tpot_sustained" and self.target.device.startswith("ssh:"):
            raise SpecError(
                "over ssh a device is measured only while cold; choose tpot_p50, or set `device` to its data sheet",
                field=field,
            )
        elif metric == "tpot_sustained" and sheet is not None:
            try:
                _ = slowdown(sheet, self.target.ambient_c if self.target.ambient_c is not None else USUAL_C)
            except Unsupported as error:
                raise SpecError(str(error), field=field) from None

    @property
    def confidence_share(self) -> float:
        """The probability with which a limit on a predicted value must hold."""
        share = units.parse_field(self.confidence, "share", "confidence")
        if not 0.5 <= share < 1:
            raise SpecError(
                f"must be from 50 % (the predicted value alone) to below 100 %, not {self.confidence}",
                field="confidence",
            )
        return share

    @property
    def allowance(self) -> Allowance:
        """The part of the budget for training, in the unit in which training is charged."""
        return allowance(self.budget, self.train)

    @property
    def task_settings(self) -> Task:
        """The task of the models."""
        found: Task = TASKS.load(self.task)
        return found

    @property
    def operators(self) -> OperatorPrior:
        """Effects of operators on loss and training speed, as known before the run trains anything."""
        return NOTHING_KNOWN if self.prior == "none" else self.task_settings.operators

    @property
    def limits_elsewhere(self) -> tuple[Constraint, ...]:
        """The constraints on other devices; their metrics are named ``metric@device``."""
        return tuple(limit for item in self.targets for limit in item.limits_there)

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints, parsed."""
        tasks = [item.label for item in self.tasks]
        return parse_constraints(self.constraints, tasks=tasks, quality=self.task_settings.metric)

    @property
    def floors(self) -> tuple[Constraint, ...]:
        """The constraints on scores of tasks."""
        return tuple(limit for limit in self.limits if limit.task is not None)

    @property
    def goals(self) -> tuple[Objective, ...]:
        """The objectives, parsed."""
        return parse_objectives(self.objectives, quality=self.task_settings.metric)

    @property
    def identity(self) -> str:
        """Digest that identifies a study's trials.

        It covers all fields except the folder, the grid's carbon intensity, the number of workers and the place of
        training. Fields that were added after the first release are included only if they are used, so that older
        studies can be opened.
        """
        data = plain(self)
        data.pop("carbon", None)
        del data["folder"], data["budget"]["workers"]
        kept = {name: value for name, value in data.pop("train").items() if name in ("precision", "price") and value}
        if kept:
            data["train"] = kept
        data["search"] = data["search"]["strategy"]
        if not data["space"]["conditions"]:
            del data["space"]["conditions"]
        for name, unset in _LATER_TARGET.items():
            if data["target"][name] == unset:
                del data["target"][name]
        if data["space"]["conv"] == ["none"]:
            del data["space"]["conv"], data["space"]["conv_taps"]
        for name, usual in _LATER.items():
            if data.get(name) == usual:
                del data[name]
        return digest(data)


def load_run(path: str | Path) -> RunSpec:
    """Reads and checks a search's YAML file, or the run in a folder such as ``runs/clinic``.

    Raises:
        SpecError: The file is missing or broken, or a field is unknown, missing or wrong; the message names file and
            field.
    """
    if os.path.isdir(path):
        held = Path(path) / "spec.json"
        if not held.is_file():
            raise SpecError("this folder holds no run; give a run file, or one such as runs/clinic", file=str(path))
        return run_spec(read_mapping(held).get("spec"), file=str(held))
    data = read_yaml(path)
    if "folder" in data:
        raise SpecError("unknown field", file=str(path), field="folder")
    return run_spec({**data, "folder": os.path.dirname(os.path.realpath(path))}, file=str(path))


def run_spec(data: object, *, file: str) -> RunSpec:
    """Builds and checks a search from a mapping. Strategy, target, task and method may be given by name alone.

    Raises:
        SpecError: A field is unknown, missing or wrong; the message names ``file`` and the field.
    """
    if not isinstance(data, Mapping):
        return build(RunSpec, data, file=file)
    if "start_from" in data:
        raise SpecError(NO_SPACE, file=file, field="start_from")
    try:
        fields = spelt_out(data)
    except SpecError as error:
        raise error.inside(file=file) from None
    name = fields.get("task", "text")
    if isinstance(name, str) and name in TASKS:
        fields = {**TASKS.load(name).defaults, **fields}
    fields = _listed(fields, file)
    found = build(RunSpec, fields, file=file)
    if found.quality.chosen != "law" and "data" not in fields:
        raise SpecError(
            "this field is missing: the text to train on, such as {source: medical-definitions}",
            file=file,
            field="data",
        )
    return found


def _listed(fields: Mapping[str, object], file: str) -> dict[str, object]:
    """``fields`` with size ranges expanded to lists; the target's tile decides which widths a range contains."""
    space = fields.get("space")
    if not isinstance(space, Mapping):
        return dict(fields)
    target = build(TargetSpec, fields.get("target", {}), file=file, field="target")
    try:
        return {**fields, "space": with_lists(space, target.sheet)}
    except SpecError as error:
        raise error.inside(file=file, field="space") from None


def spelt_out(data: Mapping[str, object]) -> dict[str, object]:
    """``data`` with strategy, method, targets and tasks as mappings, even where only names were given."""
    found = dict(data)
    if isinstance(data.get("search"), str):
        found["search"] = {"strategy": data["search"]}
    if isinstance(data.get("train"), str):
        found["train"] = {"on": data["train"]}
    elif isinstance(train := data.get("train"), Mapping):  # YAML 1.1 parsers read the key ``on`` as true
        found["train"] = {"on" if name is True else name: value for name, value in train.items()}
    if isinstance(workload := data.get("workload"), Mapping):
        found |= varying_prompts(workload)
    if isinstance(data.get("quality"), str):
        found["quality"] = {"method": data["quality"]}
    quality = found.get("quality")
    if isinstance(quality, Mapping) and quality.get("method") == "law" and "objectives" not in data:
        found["objectives"] = {EXPECTED_LOSS: "minimize", "tpot_p50": "minimize"}
    if isinstance(data.get("target"), str):
        found["target"] = {"device": data["target"]}
    if isinstance(targets := data.get("targets"), list | tuple):
        found["targets"] = [{"device": item} if isinstance(item, str) else item for item in targets]
    if isinstance(tasks := data.get("tasks"), list | tuple):
        found["tasks"] = [_named_task(item) if isinstance(item, str) else item for item in tasks]
    return found


def varying_prompts(workload: Mapping[str, object]) -> dict[str, object]:
    """The fields that replace ``workload`` if its prompts vary in length; empty if they do not."""
    prompts = workload.get("prompt_tokens")
    if not isinstance(prompts, Mapping):
        return {}
    if set(prompts) != {"p50", "p99"}:
        raise SpecError(
            "write a number, or the P50 and P99 of prompts that vary in length: {p50: 64, p99: 900}",
            field="workload.prompt_tokens",
        )
    for tokens in prompts.values():
        convert(int, tokens, "workload.prompt_tokens")
    return {"workload": {**workload, "prompt_tokens": prompts["p50"]}, "prompt_p99": prompts["p99"]}


def _named_task(text: str) -> dict[str, str]:
    return {"file" if Path(text).suffix.lower() in (".csv", ".jsonl") else "name": text}

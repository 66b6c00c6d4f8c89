"""Defines the specification of a run that starts from a pretrained model, which its YAML file states.

It has the same fields as a search (target, workload, constraints, data, budget, tasks, seed) except the space, because
the model determines what can be pruned.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chipwise.core.digest import digest, plain
from chipwise.core.fields import later
from chipwise.core.files import build, read_yaml
from chipwise.design.limits import TASK_METRICS, Constraint, parse_constraints
from chipwise.design.run.budget_spec import BudgetSpec
from chipwise.design.run.spec import FORMATS, RunSpec, TargetSpec, TaskSpec, load_run, run_spec, spelt_out
from chipwise.errors import SpecError, nearest
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.ownership import grams_per_kwh

TIMES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
STEERING = (*TIMES, "peak_memory", "parameters")  # limits that determine the choice of a pruned model
ORIGINAL = "original"  # task of a pruned encoder: how well its text similarities agree with the original's
_NOT_HERE = {
    "space": "the model in start_from determines what can be cut; leave it out",
    "objectives": "the objective is fixed: the cut closest to the original within the constraints; leave it out",
    "targets": "cuts are timed only on this machine; leave it out",
    "across": "cuts are timed only on this machine; leave it out",
    "profiling": "every contender is measured; leave it out",
    "train": "a cut is healed on this machine's cores; leave it out",
}
_SHARE = re.compile(r"^\s*(<=|<|≤|>=|>|≥)\s*(\d+(?:\.\d+)?)\s*%\s*of\s+(?:the\s+)?original\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec:
    """Specification of a run from a pretrained model. :func:`start_spec` builds it and checks every field."""

    name: str
    start_from: str  # a Hugging Face folder, relative to the run file's folder; or package:NAME/FOLDER
    workload: Workload
    data: Mapping[str, object]
    constraints: Mapping[str, object]
    target: TargetSpec = field(default_factory=TargetSpec)
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    tasks: tuple[TaskSpec, ...] = ()
    weights: str = "fp32"
    carbon: str | float | None = later(None)  # grams of CO2 of the grid's kilowatt-hour, such as 350 g/kWh
    seed: int = 0
    folder: str = "."  # folder of the run file; not a field of the file

    def __post_init__(self) -> None:
        if not self.name or any(part in self.name for part in ("/", "\\", "\0")) or self.name.startswith("."):
            raise SpecError(f"{self.name!r} cannot name a folder; use letters, digits and dashes", field="name")
        self.budget.require_cpu("a cut")
        if self.carbon is not None:
            grams_per_kwh(self.carbon, "carbon")
        if self.weights not in FORMATS:
            raise SpecError(f"unknown format {self.weights!r}; {nearest(self.weights, FORMATS)}", field="weights")
        if not self.target.local:
            raise SpecError("a model can only be cut for this machine; leave `device` out", field="target.device")
        if (self.target.runtime, self.target.threads) != ("onnxruntime", 1):
            raise SpecError(
                "cuts are timed in onnxruntime on one thread; leave `runtime` and `threads` out", field="target"
            )
        for name in ("power", "price"):
            if getattr(self.target, name) is not None:
                raise SpecError("runs that cut a model do not support this; leave it out", field=f"target.{name}")
        labels = [item.label for item in self.tasks]
        if len(set(labels)) != len(labels) or ORIGINAL in labels:
            raise SpecError(f"names must differ, and none may be {ORIGINAL!r}, but they are {labels}", field="tasks")
        self._check_constraints()

    def _check_constraints(self) -> None:
        known = self.limits({})
        for metric in [*self._shares, *(item.metric for item in known)]:
            where = f"constraints.{metric}"
            if metric.partition("@")[0] not in (*STEERING, "bits_per_byte", *TASK_METRICS):
                raise SpecError(f"cuts are not evaluated by this metric; {nearest(metric, STEERING)}", field=where)
        if soft := [item for item in known if not item.hard]:
            where = f"constraints.{soft[0].metric}"
            raise SpecError(
                "limits of a cut must be hard; write only the limit, without a penalty, such as '<= 3 ms'", field=where
            )
        for metric, (op, _, text) in self._shares.items():
            where, task = f"constraints.{metric}", metric.partition("@")[2]
            if task and task not in (labels := [*(item.label for item in self.tasks), ORIGINAL]):
                raise SpecError(f"{task!r} is not listed under `tasks`; {nearest(task, labels)}", field=where)
            if (op == ">=") != (metric.partition("@")[0] in TASK_METRICS):
                raise SpecError(
                    f"{text!r} has the wrong direction: scores of tasks take a lower bound (>=), all else an "
                    "upper one (<=)",
                    field=where,
                )
        if lower := [item for item in known if item.op == ">=" and item.task is None]:
            raise SpecError(
                f"{lower[0].text!r} is a lower bound; write an upper one, with <=",
                field=f"constraints.{lower[0].metric}",
            )
        if not {*self._shares, *(item.metric for item in known)} & set(STEERING):
            raise SpecError(
                f"limit at least one of {', '.join(STEERING)}, such as `ttft_p50: <= 60 % of original`; a cut must "
                "save something",
                field="constraints",
            )

    @property
    def _shares(self) -> dict[str, tuple[Literal["<=", ">="], float, str]]:
        """Limits that are stated as shares of the original's values: metric -> (direction, share, text)."""
        found: dict[str, tuple[Literal["<=", ">="], float, str]] = {}
        for metric, value in self.constraints.items():
            if match := _SHARE.match(str(value)):
                share = float(match[2]) / 100
                if share <= 0:
                    raise SpecError(f"the share must be positive, not {value!r}", field=f"constraints.{metric}")
                found[metric] = ("<=" if match[1][0] in "<≤" else ">=", share, str(value).strip())
        return found

    def limits(self, original: Mapping[str, float]) -> tuple[Constraint, ...]:
        """The constraints in SI units; limits stated as shares are included only if ``original`` has their metric."""
        shares = self._shares
        plainly = {metric: value for metric, value in self.constraints.items() if metric not in shares}
        tasks = [*(item.label for item in self.tasks), ORIGINAL]
        found = parse_constraints(plainly, tasks=tasks)
        of = tuple(
            Constraint(metric=metric, op=op, limit=share * original[metric], text=text)
            for metric, (op, share, text) in shares.items()
            if metric in original
        )
        return (*found, *of)

    @property
    def floors(self) -> tuple[Constraint, ...]:
        """The limits on scores of the run file's tasks."""
        return tuple(item for item in self.limits({}) if item.task not in (None, ORIGINAL))

    @property
    def source(self) -> Path:
        """The model's folder.

        Raises:
            SpecError: The package in ``package:`` is not installed.
        """
        if not self.start_from.startswith("package:"):
            return Path(self.folder) / self.start_from
        name, _, inside = self.start_from.removeprefix("package:").partition("/")
        found = importlib.util.find_spec(name) if name.isidentifier() else None
        if found is None or not found.submodule_search_locations:
            raise SpecError(f"no package {name!r} is installed; install it, or give a folder", field="start_from")
        return Path(found.submodule_search_locations[0]) / inside

    def require_kind(self, arch: ArchSpec) -> None:
        """Checks that the metrics with limits can be measured for ``arch``, and that ``arch`` can serve the workload.

        Raises:
            SpecError: A metric does not apply to the model, or the workload does not fit.
        """
        encoder = ENCODER.builds(arch)
        for metric in self.constraints:
            if encoder and (metric.startswith("tpot") or metric == "bits_per_byte"):
                raise SpecError(
                    f"{arch.name} is an encoder and generates nothing; limit ttft_p50 (the pass over a text of "
                    f"prompt_tokens) or spearman@{ORIGINAL}",
                    field=f"constraints.{metric}",
                )
            if not encoder and metric == f"spearman@{ORIGINAL}":
                raise SpecError("only valid for encoders; limit bits_per_byte", field=f"constraints.{metric}")
        needed = self.workload.prompt_tokens if encoder else self.workload.total_tokens
        if needed > arch.max_tokens:
            raise SpecError(f"needs {needed} tokens; {arch.name} takes at most {arch.max_tokens}", field="workload")

    @property
    def identity(self) -> str:
        """Digest that identifies the stages in a folder.

        It covers all fields except the budget, which may be raised, the folder, the grid's carbon intensity, and the
        target's power and price.
        """
        data = plain(self)
        data.pop("carbon", None)
        del data["folder"], data["budget"], data["target"]["power"], data["target"]["price"]
        return digest(data)


def load_any(path: str | Path) -> RunSpec | StartSpec:
    """Reads and checks the YAML file of a run, which starts from a space or from a pretrained model.

    Raises:
        SpecError: The file is missing or broken, or a field is unknown, missing or wrong; the message names file and
            field.
    """
    data = read_yaml(path)
    if "start_from" not in data:
        return load_run(path)
    if "folder" in data:
        raise SpecError("unknown field", file=str(path), field="folder")
    return any_spec({**data, "folder": os.path.dirname(os.path.realpath(path))}, file=str(path))


def any_spec(data: object, *, file: str) -> RunSpec | StartSpec:
    """Builds and checks a run from a mapping; the run searches a space or prunes a pretrained model.

    Raises:
        SpecError: A field is unknown, missing or wrong, or contradicts ``start_from``; the message names it.
    """
    if not isinstance(data, Mapping) or "start_from" not in data:
        return run_spec(data, file=file)
    if data.get("task", "text") != "text":
        raise SpecError(
            "a run from a model cuts text models only; cut this one with: chipwise shrink FOLDER --data RUN.yaml "
            "(a run file of the task)",
            file=file,
            field="task",
        )
    for name, why in _NOT_HERE.items():
        if name in data:
            raise SpecError(f"contradicts start_from: {why}", file=file, field=name)
    found = spelt_out(_without_supernet(data, file=file))
    if isinstance(data.get("weights"), list) and len(data["weights"]) == 1:  # a list of one, as in a space
        found["weights"] = data["weights"][0]
    return build(StartSpec, found, file=file)


def _without_supernet(data: Mapping[str, object], *, file: str) -> dict[str, object]:
    """Removes fields of earlier versions, which could choose a pruned model with a supernet.

    Raises:
        SpecError: The fields ask for a supernet.
    """
    quality, widths = data.get("quality", "auto"), data.get("widths", [1.0])
    method = quality.get("method", "auto") if isinstance(quality, Mapping) else quality
    asked = {
        "search": data.get("search", "auto") not in ("auto", "exact"),
        "quality": method != "auto",
        "widths": widths != [1.0],
    }
    for name in (name for name, gone in asked.items() if gone):
        raise SpecError("cuts are chosen only by losses of single blocks; leave this field out", file=file, field=name)
    return {name: value for name, value in data.items() if name not in (*asked, "task")}

"""The trials of a run with typed notes: what was chosen, promised, trained and measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chipwise.core.digest import digest
from chipwise.optim.study import Study, Trial
from chipwise.run.spec import RunSpec
from chipwise.space import SearchSpace
from chipwise.space.designs import design_of
from chipwise.space.search_space import Rows
from chipwise.spec import Design


@dataclass(frozen=True)
class Candidate:
    """One trial as a search sees it."""

    trial: Trial
    design: Design

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.trial.number

    @property
    def is_baseline(self) -> bool:
        """Whether a hand drew it."""
        return str(self.trial.notes["role"]) == "baseline"

    @property
    def alive(self) -> bool:
        """Neither failed nor set aside."""
        return self.trial.state in ("running", "complete")

    @property
    def row(self) -> list[int] | None:
        """Its row in the space; a baseline has none."""
        row: list[int] | None = self.trial.notes.get("row")
        return row

    @property
    def format_of(self) -> int | None:
        """The trial whose training this one shares, being the same architecture in another weight format."""
        number: int | None = self.trial.notes.get("format_of")
        return number

    @property
    def rungs(self) -> list[dict[str, Any]]:
        """Results of finished trainings, shortest first."""
        rungs: list[dict[str, Any]] = self.trial.notes.get("rungs", [])
        return rungs

    @property
    def quality(self) -> float | None:
        """Validation bits per byte in the deployed format, after the longest finished training."""
        return float(self.rungs[-1]["quantised_bits_per_byte"]) if self.rungs else None

    @property
    def measured(self) -> dict[str, float] | None:
        """Metrics measured on the target; of the final form once ``final`` is noted."""
        measured: dict[str, float] | None = self.trial.notes.get("measured")
        return measured

    @property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """What was reached on each task: fields of a TaskResult, or ``failed`` with the reason."""
        tasks: dict[str, dict[str, Any]] = self.trial.notes.get("tasks", {})
        return tasks

    @property
    def reached(self) -> dict[str, float]:
        """Values on tasks, by ``metric@task``."""
        return {f"{item['metric']}@{name}": item["value"] for name, item in self.tasks.items() if "value" in item}

    @property
    def costs(self) -> dict[str, float]:
        """Metrics as measured, or as predicted where they were not."""
        predicted = {metric: bounds[0] for metric, bounds in self.trial.notes["predicted"].items()}
        return predicted | (self.measured or {})

    @property
    def known(self) -> dict[str, float]:
        """The same, and what was reached on tasks."""
        return self.costs | self.reached

    def after(self, rung: int) -> dict[str, Any] | None:
        """The result of one rung, if it is finished."""
        return next((item for item in self.rungs if item["rung"] == rung), None)


class Trials:
    """All trials of one run, kept in its study."""

    def __init__(self, study: Study, spec: RunSpec, space: SearchSpace) -> None:
        self.study, self._spec, self._space = study, spec, space
        self._designs: dict[str, Design] = {}

    def all(self) -> list[Candidate]:
        """Every trial in order of number."""
        return [Candidate(trial, self._design(trial)) for trial in self.study.trials()]

    def __getitem__(self, number: int) -> Candidate:
        return self.all()[number]

    def _design(self, trial: Trial) -> Design:
        key = digest(trial.notes["choices"])
        if key not in self._designs:
            name = "baseline" if trial.notes["role"] == "baseline" else self._spec.name
            self._designs[key] = design_of(trial.notes["choices"], spec=self._spec.space, name=name)
        return self._designs[key]

    def add(self, row: Rows, *, predicted: Mapping[str, list[float]]) -> int:
        """A new candidate of the space."""
        labels = {
            gene.label: value_label(gene.values[i])
            for gene, i, active in zip(self._space.genes, row, self._space.active(row[None])[0], strict=True)
            if active
        }
        return self._start("candidate", self._space.choices(row), labels, predicted, row=[int(i) for i in row])

    def add_baseline(self, choices: Mapping[str, Any], *, predicted: Mapping[str, list[float]]) -> int:
        """The hand-drawn design."""
        return self._start("baseline", choices, {}, predicted, row=None)

    def _start(
        self,
        role: str,
        choices: Mapping[str, Any],
        labels: Mapping[str, str],
        predicted: Mapping[str, list[float]],
        *,
        row: list[int] | None,
    ) -> int:
        notes = {"role": role, "choices": dict(choices), "row": row, "predicted": dict(predicted), "started": now()}
        return self.study.start(labels, notes)

    def trained(self, number: int, result: Mapping[str, Any]) -> None:
        """Notes a finished rung. ``result`` has rung, cpu_s, bits_per_byte, quantised_bits_per_byte, … and curve."""
        kept = [item for item in self[number].rungs if item["rung"] != result["rung"]]
        curve = result["curve"]
        self.study.note(number, rungs=[*kept, {k: v for k, v in result.items() if k != "curve"}], curve=curve)

    def fail(self, number: int, reason: str) -> None:
        """Ends a trial with its reason."""
        self.study.note(number, ended=now())
        self.study.fail(number, reason)

    def note(self, number: int, **notes: Any) -> None:
        """Adds to what is known of a trial."""
        self.study.note(number, **notes)


def choice_labels(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """Every gene and the labels of its values, as the study's store and dashboards show them."""
    return {g.label: tuple(value_label(v) for v in g.values) for g in space.genes}


def value_label(value: object) -> str:
    """A value's name for people; (heads, KV heads) become ``4/2``."""
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

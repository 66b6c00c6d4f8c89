"""The trials of a run and the data stored about them: choices, predictions, training runs, measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from chipwise.core.digest import digest, plain
from chipwise.core.fields import losses_renamed
from chipwise.core.record import Record
from chipwise.design.run.spec import RunSpec
from chipwise.design.strategies.study import Study, Trial
from chipwise.model.arch.design import Design
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import Rows, SearchSpace

Prediction = Sequence[float | None]  # value and its 90 % interval; bounds are None if there is no interval
Predictions = Mapping[str, Prediction]  # by metric
Role = Literal["candidate", "baseline"]  # stored values; a "baseline" is a reference design


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRung:
    """The result of one finished training run."""

    rung: int
    cpu_s: float  # total seconds on the training device (a core or a GPU), including earlier rungs
    tokens: int
    loss: float  # of the trained weights, on the validation text
    quantised_loss: float  # in the deployed weight format
    perplexity: float | None = None
    weights: str | None = None  # file in the training folder

    @classmethod
    def from_plain(cls, data: Mapping[str, object]) -> TrainedRung:
        """Reads a stored result; unknown fields are ignored."""
        return cls(**_known(cls, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNotes:
    """Everything that is stored about a trial; in the study, one JSON value for each field that is set."""

    role: Role
    choices: Mapping[str, object]
    predicted: Predictions  # written once, before this candidate was measured
    row: tuple[int, ...] | None = None  # row of its choices in the space; None for a reference design
    started: str | None = None  # ISO 8601
    ended: str | None = None
    reason: str | None = None  # why the trial failed
    format_of: int | None = None  # trial of this architecture in another weight format, whose training it shares
    promoted: int = 0  # highest rung to which it was promoted
    rungs: tuple[TrainedRung, ...] = ()  # finished training runs, shortest first
    curve: tuple[tuple[float | None, ...], ...] = ()  # CPU seconds, tokens, training and validation bits per byte
    believed_now: Predictions = field(default_factory=dict)  # by the cost model, updated with measurements
    measured: Mapping[str, float] | None = None
    measured_bounds: Mapping[str, list[float | None]] = field(default_factory=dict)  # 95 % intervals of percentiles
    settled: Mapping[str, float] | None = None  # values to which the cost model is fitted
    measured_because: str | None = None
    within: bool | None = None  # whether it meets the limits, by measurement if it was measured
    earlier: bool = False  # a reference design that was chosen under other limits or another budget
    clean: bool | None = None  # whether the machine was quiet
    unclean_because: tuple[str, ...] = ()
    loudness: float | None = None  # disturbance of the measurement; below 1 is clean
    drift: Mapping[str, object] | None = None  # drift of the machine since calibration
    runtime_version: str | None = None
    final: bool = False  # whether the exported, trained model was measured on a quiet machine
    by_matrix: Mapping[str, object] = field(default_factory=dict)  # fields of a Selection, and whether it was ``kept``
    quantised: Mapping[str, object] = field(default_factory=dict)  # ``method``, and fields of a Choice if there was one
    exported_loss: float | None = None  # of the exported graph, on the validation text
    test_loss: float | None = None  # of the exported graph, on the test text, which was used for no selection
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of a TaskResult, or ``failed``

    def to_plain(self) -> dict[str, object]:
        """The fields that differ from their defaults, as JSON values."""
        usual = TrialNotes(role=self.role, choices=self.choices, predicted=self.predicted)
        required = ("role", "choices", "predicted", "row")
        return {
            item.name: plain(getattr(self, item.name))
            for item in fields(self)
            if item.name in required or getattr(self, item.name) != getattr(usual, item.name)
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, object]) -> TrialNotes:
        """Reads notes from a study; unknown names are ignored."""
        known = _known(cls, data)
        for name in ("row", "unclean_because"):
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        known["rungs"] = tuple(TrainedRung.from_plain(item) for item in known.get("rungs", ()))
        known["curve"] = tuple(tuple(point) for point in known.get("curve", ()))
        return cls(**known)


NOTE_NAMES = frozenset(item.name for item in fields(TrialNotes))


def _known(cls: type, data: Mapping[str, object]) -> dict[str, Any]:
    names = {item.name for item in fields(cls)}
    return {name: value for name, value in losses_renamed(data).items() if name in names}


@dataclass(frozen=True)
class Candidate:
    """One trial with its design, as a search uses it."""

    trial: Trial
    design: Design

    @cached_property
    def notes(self) -> TrialNotes:
        """The trial's notes."""
        return TrialNotes.from_plain(self.trial.notes)

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.trial.number

    @property
    def is_reference(self) -> bool:
        """Whether this is a reference design instead of a candidate from the space."""
        return self.notes.role == "baseline"

    @property
    def alive(self) -> bool:
        """Whether the trial has neither failed nor been set aside."""
        return self.trial.state in ("running", "complete")

    @property
    def row(self) -> tuple[int, ...] | None:
        """The candidate's choices encoded as integers (a row of the space); None for a reference design."""
        return self.notes.row

    @property
    def format_of(self) -> int | None:
        """Number of the trial of the same architecture whose training run this one shares; None if it has its own."""
        return self.notes.format_of

    @property
    def rungs(self) -> tuple[TrainedRung, ...]:
        """Results of finished training runs, shortest first."""
        return self.notes.rungs

    @property
    def quality(self) -> float | None:
        """Validation bits per byte in the deployed format, after the longest finished training."""
        return self.rungs[-1].quantised_loss if self.rungs else None

    @property
    def loss(self) -> float | None:
        """The task's loss on validation data: that of the exported graph if known, else :attr:`quality`."""
        exported = self.notes.exported_loss
        return self.quality if exported is None else exported

    @property
    def measured(self) -> dict[str, float] | None:
        """Metrics measured on the target; after the final measurement, those of the exported, trained model."""
        return None if self.notes.measured is None else dict(self.notes.measured)

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """Maps each task to its result: the fields of a TaskResult, or ``failed`` with the reason."""
        return self.notes.tasks

    @property
    def reached(self) -> dict[str, float]:
        """Maps ``metric@task`` to the score reached on that task."""
        return {f"{item['metric']}@{name}": item["value"] for name, item in self.tasks.items() if "value" in item}

    @property
    def costs(self) -> dict[str, float]:
        """Maps metrics to costs: the measured value, else the latest prediction, else the first prediction."""
        notes = self.notes
        known = {**notes.predicted, **notes.believed_now}
        predicted = {metric: float(bounds[0]) for metric, bounds in known.items() if bounds[0] is not None}
        return predicted | (self.measured or {})

    @property
    def known(self) -> dict[str, float]:
        """:attr:`costs` and scores on tasks."""
        return self.costs | self.reached

    def after(self, rung: int) -> TrainedRung | None:
        """The result of training for rung number ``rung``; None if it is not finished."""
        return next((item for item in self.rungs if item.rung == rung), None)

    def trained_to(self, rung: int) -> bool:
        """Whether a training run as long as rung number ``rung``, or longer, is finished."""
        return any(item.rung >= rung for item in self.rungs)


class Trials:
    """All trials of a run, stored in its study."""

    def __init__(self, study: Study, spec: RunSpec, space: SearchSpace) -> None:
        self.study, self._spec, self._space = study, spec, space
        self._designs: dict[str, Design] = {}

    def all(self) -> list[Candidate]:
        """Every trial, in order of trial numbers."""
        return [Candidate(trial, self._design(trial)) for trial in self.study.trials()]

    def measured(self) -> list[tuple[Design, Mapping[str, float]]]:
        """Measured designs with the values from which a target learns: ``settled``, or ``measured`` if that is empty.

        P99 times that were measured on a busy machine are left out, because they depend on other programs.
        """
        found: list[tuple[Design, Mapping[str, float]]] = []
        for item in self.all():
            values, quiet = item.notes.settled or item.measured or {}, item.notes.clean is not False
            if known := {name: value for name, value in values.items() if quiet or not name.endswith("_p99")}:
                found.append((item.design, known))
        return found

    def __getitem__(self, number: int) -> Candidate:
        trial = self.study.trial(number)
        return Candidate(trial, self._design(trial))

    def _design(self, trial: Trial) -> Design:
        notes = Record(trial.notes)
        name = "baseline" if notes.get("role", str) == "baseline" else self._spec.name
        by_matrix, choices = notes.record("by_matrix"), notes.record("choices").data
        kept = by_matrix.get("kept", bool, False)
        key = digest([name, choices, [by_matrix.data["weights"], by_matrix.data["fused"]] if kept else None])
        if key not in self._designs:
            found = design_of(choices, spec=self._spec.space, name=name)
            if kept:
                fused = tuple(by_matrix.sequence("fused", str))
                found = replace(found, weights=by_matrix.get("weights", str), fused=fused)
            self._designs[key] = found
        return self._designs[key]

    def add(self, row: Rows, *, predicted: Predictions, **notes: Any) -> int:
        """Starts the trial of a candidate from the space; returns the trial's number."""
        labels = {
            gene.label: value_label(gene.values[i])
            for gene, i, active in zip(self._space.genes, row, self._space.active(row[None])[0], strict=True)
            if active
        }
        place = tuple(int(i) for i in row)
        return self._start("candidate", self._space.choices(row), labels, predicted, row=place, **notes)

    def add_reference(self, choices: Mapping[str, object], *, predicted: Predictions) -> int:
        """Starts the trial of a reference design; returns the trial's number."""
        return self._start("baseline", choices, {}, predicted)

    def _start(
        self, role: Role, choices: Mapping[str, object], labels: Mapping[str, str], predicted: Predictions, **notes: Any
    ) -> int:
        found = TrialNotes(role=role, choices=dict(choices), predicted=dict(predicted), started=now(), **notes)
        return self.study.start(labels, found.to_plain())

    def trained(self, number: int, result: Mapping[str, object]) -> None:
        """Records a finished training run, given the fields of a :class:`TrainedRung` and ``curve``.

        Results of exporting weights from an earlier rung are discarded.
        """
        item = self[number]
        kept = [each for each in item.rungs if each.rung != result["rung"]]
        if item.notes.exported_loss is not None:
            self.note(number, exported_loss=None, test_loss=None, final=False, by_matrix={}, tasks={})
        self.study.note(number, rungs=plain((*kept, TrainedRung.from_plain(result))), curve=result["curve"])

    def fail(self, number: int, reason: str) -> None:
        """Ends a trial as failed, with the reason."""
        self.study.note(number, ended=now())
        self.study.fail(number, reason)

    def note(self, number: int, **notes: object) -> None:
        """Sets fields of a trial's :class:`TrialNotes`.

        Raises:
            TypeError: A field does not exist, or is ``predicted``, which is never changed.
        """
        strange = notes.keys() - NOTE_NAMES | notes.keys() & {"predicted"}
        if strange:
            raise TypeError(f"unknown or unchangeable fields of a trial's notes: {', '.join(sorted(strange))}")
        self.study.note(number, **{name: plain(value) for name, value in notes.items()})


def choice_labels(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """Maps each gene to the labels of its values, for the study's storage and dashboards."""
    return {g.label: tuple(value_label(v) for v in g.values) for g in space.genes}


def value_label(value: object) -> str:
    """Display name of a value; (heads, KV heads) become ``4/2``."""
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

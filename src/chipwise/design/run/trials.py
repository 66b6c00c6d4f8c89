"""The trials of a run and their records: choices, predictions, trainings, measurements."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from chipwise.core.digest import digest
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
    """The result of one finished training."""

    rung: int
    cpu_s: float  # total seconds of the training device (a core or a GPU), including earlier rungs
    tokens: int
    loss: float  # of the trained weights, on the validation text
    quantised_loss: float  # in the deployed weight format
    perplexity: float | None = None
    weights: str | None = None  # file in the training's folder

    @classmethod
    def from_plain(cls, data: Mapping[str, object]) -> TrainedRung:
        """Reads the used fields of a stored result."""
        return cls(**_known(cls, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNotes:
    """All stored notes of a trial, as plain JSON with one value for each field that is set."""

    role: Role
    choices: Mapping[str, object]
    predicted: Predictions  # written once, before this candidate was measured
    row: tuple[int, ...] | None = None  # in the space; None for a reference design
    started: str | None = None  # ISO 8601
    ended: str | None = None
    reason: str | None = None  # why the trial failed
    format_of: int | None = None  # trial of the same architecture whose training it shares, with another weight format
    promoted: int = 0  # highest rung to which it was promoted
    rungs: tuple[TrainedRung, ...] = ()  # finished trainings, shortest first
    curve: tuple[tuple[float | None, ...], ...] = ()  # CPU seconds, tokens, training and validation bits per byte
    believed_now: Predictions = field(default_factory=dict)  # by the cost model after learning from measurements
    measured: Mapping[str, float] | None = None
    measured_bounds: Mapping[str, list[float | None]] = field(default_factory=dict)  # 95 % intervals of percentiles
    settled: Mapping[str, float] | None = None  # values to which the cost model is fitted
    measured_because: str | None = None
    within: bool | None = None  # whether it keeps the limits, by measurement if that was worthwhile
    earlier: bool = False  # a reference design that was chosen under other limits or another budget
    clean: bool | None = None  # whether the machine was quiet
    unclean_because: tuple[str, ...] = ()
    loudness: float | None = None  # disturbance of the measurement; below 1 is clean
    drift: Mapping[str, object] | None = None  # drift of the machine since calibration
    runtime_version: str | None = None
    final: bool = False  # whether the exported, trained model was measured on a quiet machine
    by_matrix: Mapping[str, object] = field(default_factory=dict)  # fields of a Selection, and whether it was ``kept``
    quantised: Mapping[str, object] = field(default_factory=dict)  # ``method``; fields of a Choice if it was chosen
    exported_loss: float | None = None  # of the exported graph, on the validation text
    test_loss: float | None = None  # of the exported graph, on the test text, which was used for no selection
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of a TaskResult, or ``failed``

    def to_plain(self) -> dict[str, object]:
        """The fields that differ from their defaults, as JSON values."""
        usual = TrialNotes(role=self.role, choices=self.choices, predicted=self.predicted)
        required = ("role", "choices", "predicted", "row")
        return {
            item.name: _plain(getattr(self, item.name))
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


def _plain(value: object) -> object:
    if isinstance(value, TrainedRung):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Candidate:
    """One trial, as used by a search."""

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
        """Whether it is a reference design, not a candidate of the space."""
        return self.notes.role == "baseline"

    @property
    def alive(self) -> bool:
        """Whether it has neither failed nor been set aside."""
        return self.trial.state in ("running", "complete")

    @property
    def row(self) -> tuple[int, ...] | None:
        """Its row in the space; a reference design has none."""
        return self.notes.row

    @property
    def format_of(self) -> int | None:
        """The trial whose training it shares: the same architecture in another weight format."""
        return self.notes.format_of

    @property
    def rungs(self) -> tuple[TrainedRung, ...]:
        """Results of finished trainings, shortest first."""
        return self.notes.rungs

    @property
    def quality(self) -> float | None:
        """Validation bits per byte in the deployed format, after the longest finished training."""
        return self.rungs[-1].quantised_loss if self.rungs else None

    @property
    def loss(self) -> float | None:
        """The task's loss on validation data: of the exported graph, else :attr:`quality`."""
        exported = self.notes.exported_loss
        return self.quality if exported is None else exported

    @property
    def measured(self) -> dict[str, float] | None:
        """Metrics measured on the target; at the end, those of the exported, trained model."""
        return None if self.notes.measured is None else dict(self.notes.measured)

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """Results by task: fields of a TaskResult, or ``failed`` with the reason."""
        return self.notes.tasks

    @property
    def reached(self) -> dict[str, float]:
        """Values on tasks, by ``metric@task``."""
        return {f"{item['metric']}@{name}": item["value"] for name, item in self.tasks.items() if "value" in item}

    @property
    def costs(self) -> dict[str, float]:
        """Measured metrics, else current predictions, else first predictions."""
        notes = self.notes
        known = {**notes.predicted, **notes.believed_now}
        predicted = {metric: float(bounds[0]) for metric, bounds in known.items() if bounds[0] is not None}
        return predicted | (self.measured or {})

    @property
    def known(self) -> dict[str, float]:
        """:attr:`costs` and scores on tasks."""
        return self.costs | self.reached

    def after(self, rung: int) -> TrainedRung | None:
        """The result of one rung, if it is finished."""
        return next((item for item in self.rungs if item.rung == rung), None)

    def trained_to(self, rung: int) -> bool:
        """Whether a training of this rung's length is finished."""
        return any(item.rung >= rung for item in self.rungs)


class Trials:
    """All trials of a run, stored in its study."""

    def __init__(self, study: Study, spec: RunSpec, space: SearchSpace) -> None:
        self.study, self._spec, self._space = study, spec, space
        self._designs: dict[str, Design] = {}

    def all(self) -> list[Candidate]:
        """Every trial in order of number."""
        return [Candidate(trial, self._design(trial)) for trial in self.study.trials()]

    def measured(self) -> list[tuple[Design, Mapping[str, float]]]:
        """Measured designs for updating a target's predictions, with settled values if there are any.

        P99s of a busy machine are left out, because they depend on other programs.
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
        """Starts a trial of a candidate of the space; returns its number."""
        labels = {
            gene.label: value_label(gene.values[i])
            for gene, i, active in zip(self._space.genes, row, self._space.active(row[None])[0], strict=True)
            if active
        }
        place = tuple(int(i) for i in row)
        return self._start("candidate", self._space.choices(row), labels, predicted, row=place, **notes)

    def add_reference(self, choices: Mapping[str, object], *, predicted: Predictions) -> int:
        """Starts a trial of a reference design; returns its number."""
        return self._start("baseline", choices, {}, predicted)

    def _start(
        self, role: Role, choices: Mapping[str, object], labels: Mapping[str, str], predicted: Predictions, **notes: Any
    ) -> int:
        found = TrialNotes(role=role, choices=dict(choices), predicted=dict(predicted), started=now(), **notes)
        return self.study.start(labels, found.to_plain())

    def trained(self, number: int, result: Mapping[str, object]) -> None:
        """Records a finished rung: the fields of a :class:`TrainedRung`, and ``curve``.

        Results of an export of earlier weights are discarded.
        """
        item = self[number]
        kept = [each for each in item.rungs if each.rung != result["rung"]]
        if item.notes.exported_loss is not None:
            self.note(number, exported_loss=None, test_loss=None, final=False, by_matrix={}, tasks={})
        self.study.note(number, rungs=_plain((*kept, TrainedRung.from_plain(result))), curve=result["curve"])

    def fail(self, number: int, reason: str) -> None:
        """Ends a trial with its reason."""
        self.study.note(number, ended=now())
        self.study.fail(number, reason)

    def note(self, number: int, **notes: object) -> None:
        """Sets fields of a trial's :class:`TrialNotes`.

        Raises:
            TypeError: There is no such field, or it is the first prediction, which is never rewritten.
        """
        strange = notes.keys() - NOTE_NAMES | notes.keys() & {"predicted"}
        if strange:
            raise TypeError(f"a trial's notes cannot be given {', '.join(sorted(strange))}")
        self.study.note(number, **{name: _plain(value) for name, value in notes.items()})


def choice_labels(space: SearchSpace) -> dict[str, tuple[str, ...]]:
    """Every gene and the labels of its values, for the study's store and dashboards."""
    return {g.label: tuple(value_label(v) for v in g.values) for g in space.genes}


def value_label(value: object) -> str:
    """Display name of a value; (heads, KV heads) become ``4/2``."""
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def now() -> str:
    """The time, as ISO 8601 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

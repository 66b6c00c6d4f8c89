"""Defines RunRecord: all data for reports about one search, as plain values that are stored in ``record.json``.

The record is derived from the study; its values are in SI units, without any formatting. Unknown values are None or
empty, so an unfinished run also has a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from chipwise.core.fields import convert, later, losses_renamed
from chipwise.core.files import build, read_json, write_json
from chipwise.core.results import Result
from chipwise.design.limits import Constraint, Objective
from chipwise.design.report import words
from chipwise.design.report.words import Words
from chipwise.design.run.footprint import Footprint
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.model import Predicted
from chipwise.training.tasks.protocol import task_named

SCHEMA: Final = "chipwise.run/1"
State = Literal["priced", "trained", "measured", "failed", "pruned"]
Role = Literal["candidate", "winner", "baseline", "original"]
# Fields of older records that are no longer used; they are dropped on reading.
_GONE = {"operators", "roofs", "peaks", "memory", "per_thousand", "cloud", "history", "rankings"}
_GONE_OF_ANSWER = {"growth", "growth_random"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """One contender's score on the held-out items of a task; ``failed`` says why it could not be evaluated."""

    metric: str | None = None  # accuracy or spearman
    method: str | None = None
    value: float | None = None
    low: float | None = None  # lower end of the 95 % interval over items
    high: float | None = None
    train_items: int | None = None
    test_items: int | None = None
    confusion: tuple[tuple[int, ...], ...] = ()  # counts: [true class][answered class]
    judged: str = ""  # form of the model that was evaluated, such as the exported graph
    failed: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failed is None):
            raise SpecError("needs either a value or the reason why there is none", field="value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task of the run: its classes, and the score of the TF-IDF baseline on the same items."""

    name: str
    classes: tuple[str, ...] = ()
    bar: TaskScore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Device and runtime of the run; ``measures`` is True if all measurements were made on the device."""

    device: str
    runtime: str
    title: str | None = None
    measures: bool = True
    confidence: float | None = None  # probability with which predictions had to meet limits
    cpu: str | None = None
    cores: int | None = None
    runtime_version: str | None = None
    threads: int = 1
    instructions: str | None = later(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget, and the CPU seconds that each phase has taken so far.

    A budget in ``cpu_s`` covers every phase. Other budgets cover only training and are counted in ``unit``: seconds of
    the training device (cpu or gpu), or tokens.
    """

    cpu_s: float | None = None  # None if the budget pays only for training
    spent: dict[str, float] = field(default_factory=dict)  # CPU seconds on this machine, by phase in order
    unit: str = "cpu"
    allowed: float | None = None  # budget for training, if it pays for nothing else
    charged: float | None = None
    device: str = "cpu"  # device that trains: cpu or gpu
    footprint: Footprint | None = None  # joules and CO2 of the CPU seconds in ``spent``

    @property
    def usage(self) -> str:
        """A clause with the used and the available budget."""
        used = words.quantity(sum(self.spent.values()), "time")
        if self.cpu_s is not None:
            return f"{used} of its {words.quantity(self.cpu_s, 'time')} of CPU time"
        if not self.charged:
            return f"{used} of CPU time on the machine that searched, and trained nothing"
        kind = "count" if self.unit == "tokens" else "time"
        of = "tokens" if self.unit == "tokens" else f"{self.unit.upper()} time"
        taken, whole = (words.quantity(value, kind) for value in (self.charged, self.allowed))
        return f"{taken} of its {whole} of {of} for training, and {used} of CPU time on the machine that searched"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSummary:
    """Size of the space, and how many candidates were screened by predicted cost."""

    size: int
    choices: dict[str, object] = field(default_factory=dict)  # values to choose from, by name
    priced: int | None = None
    priced_per_s: float | None = None  # distinct candidates whose costs were predicted per second
    widened: str | None = later(None)  # which values the search added to those in the run file, and why
    aligned: str | None = later(None)  # the saving from widths that suit the chip's tiles
    feasible_share: float | None = None  # share of the first distinct candidates that are predicted within the limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """The data on which models were trained, validated and tested."""

    name: str
    entries_train: int | None = None
    entries_val: int | None = None
    entries_test: int | None = None
    bytes_train: int | None = None
    bytes_val: int | None = None
    bytes_test: int | None = None
    licence: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One point of a training curve. CPU seconds and tokens are summed over all rungs, from the first training step."""

    cpu_s: float
    tokens: int
    train_loss: float | None = None
    val_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial: its choices and results. Dictionaries of metrics map names to values in SI units."""

    number: int
    state: State
    summary: str  # such as "d192 L4 swiglu…"
    weights: str  # number format of the deployed weights
    rung: int | None = None  # rung of successive halving; None before training
    choices: dict[str, object] = field(default_factory=dict)
    parameters: int | None = None
    loss: float | None = None  # of the trained weights, on the validation text
    perplexity: float | None = None
    quantised_loss: float | None = None  # of the exported artefact, on the validation text
    test_loss: float | None = None  # of the exported artefact, on the test text, which was used for no selection
    train_cpu_s: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    predicted: dict[str, Predicted] = field(default_factory=dict)  # written once, before the trial was measured
    believed_now: dict[str, Predicted] = field(default_factory=dict)  # by the cost model after all measurements
    measured: dict[str, float] | None = None
    measured_bounds: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)  # 95 % intervals
    tasks: dict[str, TaskScore] = field(default_factory=dict)  # by the task's name
    clean: bool | None = None  # whether the machine was quiet while measuring
    chances: dict[str, float | None] = field(default_factory=dict)  # probability that each limit on a prediction holds
    feasible: bool | None = None  # whether it meets the limits, by measurement if there is one, else by prediction
    reason: str | None = None  # why the trial failed, was pruned, or is not clean
    started: str | None = None  # ISO 8601
    ended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A prediction from before the measurement, with the measured value."""

    trial: int
    metric: str
    promised: float
    low: float | None = None
    high: float | None = None
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Expected effect of relaxing one limit by ``share``, according to the quality model."""

    limit: str  # the limited metric
    share: float
    best: dict[str, tuple[float | None, ...]] = field(default_factory=dict)  # by objective: best now, best if relaxed
    gain: float | None = None  # relative gain in hypervolume of the expected front; None if there was no front
    std: float | None = None  # standard deviation of the loss predicted for the design with the largest gain
    summary: str | None = None  # description of that design; None if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A reference design that could have been trained with the whole budget instead, and its expected loss."""

    summary: str
    expected: tuple[float, float, float]  # loss, and its 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """Losses that were expected before any training, compared with the losses reached."""

    expected: tuple[float, float, float]  # expected loss of the winner after its training, and its 90 % interval
    loss: float  # loss that the winner reached; that of the exported graph if known
    tau: float | None = None  # Kendall's tau of expected and real losses (first training runs); None for few designs
    trainings: int = 1  # number of designs that were trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Explanation of the result. Losses are those expected after full training."""

    knee: int | None = None
    knee_why: str | None = None
    knee_expected: float | None = None  # expected loss of the knee
    relaxed: tuple[Relaxed, ...] = ()
    importance: dict[str, dict[str, float]] = field(default_factory=dict)  # objective -> choice -> share of variance
    alternatives: tuple[Alternative, ...] = ()
    foreseen: Foreseen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """One of the run's devices: expected costs of trials on it, and the trials on its front."""

    device: str
    title: str
    runtime: str | None = None
    costs: dict[str, dict[str, float]] = field(default_factory=dict)  # trial -> metric -> value
    bounds: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)  # 90 % intervals, same keys as costs
    front: tuple[int, ...] = ()
    carried: dict[str, float] = field(default_factory=dict)  # by other device: share of its front reached by this one
    ranks: dict[str, float] = field(default_factory=dict)  # by other device: rank correlation of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The pretrained model that was pruned. The winner is the pruned model; the baseline has only the first layers."""

    source: str
    original: int  # number of the original's trial
    method: Literal["exact", "shared"]
    steps: int | None = None  # healing steps, the same for each contender
    distances: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by trial: pruned, healed; 0 means equal


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScore:
    """The test data on which winner and reference design were scored, and standard errors of the scores."""

    entries: int
    bytes: int
    difference_std_error: float | None = None  # standard error, over entries, of the log ratio of the two losses
    std_errors: tuple[float | None, ...] = ()  # standard error of each loss, over entries

    __test__ = False  # tells pytest that this is not a test class


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLaw:
    """Results of a search without training: the law that ranked the designs, and the winner's training plan."""

    source: str  # where the law comes from
    tokens: float  # training tokens of every design
    change: Predicted | None = None  # the winner's expected loss minus the reference design's, in nats per token
    notes: tuple[str, ...] = ()  # properties of the winner outside the range that the law was fitted to
    plan: str | None = None  # the winner's training plan in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How the winner and the reference design continue the beginning of a test entry, by greedy decoding."""

    prompt: str
    winner: str = ""
    baseline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunRecord(Result):
    """One search, from its specification to its results.

    Raises:
        SpecError: Two trials have the same number, or a number refers to a missing trial.
    """

    name: str
    created: str  # ISO 8601
    version: str  # of chipwise
    status: Literal["finished", "partial"]
    seed: int
    target: Target
    workload: Workload
    budget: Budget
    space: SpaceSummary
    schema: str = SCHEMA
    task: str = "text"  # task of the models, which defines the loss
    constraints: tuple[Constraint, ...] = ()
    objectives: tuple[Objective, ...] = ()
    data: DataSummary | None = None
    trials: tuple[Trial, ...] = ()
    winner: int | None = None
    baseline: int | None = None
    knee: int | None = None
    front: tuple[int, ...] = ()
    promised_measured: tuple[Promise, ...] = ()
    launch_overhead_s: float | None = None
    answer: Answer = field(default_factory=Answer)
    tasks: tuple[TaskSummary, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    test: TestScore | None = None
    continuations: tuple[Continuation, ...] = ()
    samples: dict[str, object] = field(default_factory=dict)  # outputs of models on test data, for the task's sections
    law: ByLaw | None = None  # set only if nothing was trained
    start: Start | None = None  # set only if the run started from a pretrained model
    stopped: str | None = None  # error that ended an unfinished run
    notes: tuple[str, ...] = ()  # limitations, and measurements that are not clean

    def __post_init__(self) -> None:
        numbers = [trial.number for trial in self.trials]
        if len(numbers) != len(set(numbers)):
            raise SpecError("two trials have the same number", field="trials")
        for name, used in (
            ("winner", (self.winner,)),
            ("baseline", (self.baseline,)),
            ("knee", (self.knee,)),
            ("start.original", (None if self.start is None else self.start.original,)),
            ("front", self.front),
            ("promised_measured", tuple(item.trial for item in self.promised_measured)),
        ):
            for number in used:
                if number is not None and number not in numbers:
                    raise SpecError(f"there is no trial {number}", field=name)

    def headline(self) -> str:
        """The run, its status and its winner."""
        winner = "no winner yet" if self.winner is None else f"winner: trial {self.winner}"
        return f"{self.name}, {self.status}: {len(self.trials)} trials, {winner}"

    def rows(self) -> list[dict[str, object]]:
        """One row per trial."""
        names = sorted({name for trial in self.trials for name in trial.measured or ()})
        return [
            {
                "trial": trial.number,
                "state": trial.state,
                "design": trial.summary,
                "weights": trial.weights,
                "parameters": trial.parameters,
                "loss": trial.loss,
                **{name: (trial.measured or {}).get(name) for name in names},
                "feasible": trial.feasible,
            }
            for trial in self.trials
        ]

    @property
    def words(self) -> Words:
        """The terms of the record's task: its metric, and the names of its data and requests."""
        return Words(task_named(self.task))

    def trial(self, number: int | None) -> Trial | None:
        """The trial with this number; None if there is none."""
        return next((item for item in self.trials if item.number == number), None)

    def role(self, trial: Trial) -> Role:
        """The trial's role in this run; if the baseline itself won, its role is that of the winner."""
        if trial.number == self.winner:
            return "winner"
        if self.start is not None and trial.number == self.start.original:
            return "original"
        return "baseline" if trial.number == self.baseline else "candidate"

    def to_plain(self) -> dict[str, object]:
        """The record as values that can be written as JSON.

        Raises:
            SpecError: A number is NaN or infinite; unknown numbers must be None.
        """
        plain = {"schema": self.schema, **dataclasses.asdict(self)}
        return {name: convert(object, value, name) for name, value in plain.items()}

    @classmethod
    def from_plain(cls, data: object, *, file: str | None = None) -> RunRecord:
        """Builds a record from the values that :meth:`to_plain` returned; missing fields count as unknown.

        Raises:
            SpecError: The record has another schema version, an unknown field, or a value of the wrong type.
        """
        if isinstance(data, Mapping) and data.get("schema", SCHEMA) != SCHEMA:
            raise SpecError(
                f"this record has version {data['schema']!r}, but this chipwise reads {SCHEMA!r}; "
                "draw it with the version that wrote it",
                file=file,
                field="schema",
            )
        return build(cls, _today(data), file=file)


def _today(data: object) -> object:
    """Updates a stored record to current field names, and drops old fields. :func:`build` refuses malformed fields."""
    if not isinstance(data, Mapping):
        return data

    def renamed(item: object) -> object:
        if not isinstance(item, Mapping):
            return item
        found = losses_renamed(item)
        if isinstance(found.get("curve"), list | tuple):
            found["curve"] = [renamed(point) for point in found["curve"]]
        return found

    kept = {name: value for name, value in data.items() if name not in _GONE}
    if isinstance(answer := data.get("answer"), Mapping):
        kept["answer"] = shown_of_answer(answer)
    if isinstance(trials := data.get("trials"), list):
        kept["trials"] = [renamed(item) for item in trials]
    return kept


def shown_of_answer(stored: Mapping[str, object]) -> dict[str, object]:
    """A stored answer without the fields that are no longer used."""
    return {name: value for name, value in stored.items() if name not in _GONE_OF_ANSWER}


def save(record: RunRecord, path: str | Path) -> None:
    """Writes the record as JSON, atomically."""
    write_json(path, record.to_plain())


def load(path: str | Path) -> RunRecord:
    """Reads a record from a JSON file.

    Raises:
        SpecError: The file is missing, is not JSON, or is not a record.
    """
    return RunRecord.from_plain(read_json(path), file=str(path))

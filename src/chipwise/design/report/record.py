"""RunRecord: all data of a report about one search, as plain values stored in ``record.json``.

The record is derived from the study and has SI values, without presentation. Unknown values are None or empty, so an
unfinished run also has a record.
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
# Fields of older records that are no longer shown.
_GONE = {"operators", "roofs", "peaks", "memory", "per_thousand", "cloud", "history", "rankings"}
_GONE_OF_ANSWER = {"growth", "growth_random"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """Score of one contender on the held-out items of a task; ``failed`` is why it could not be evaluated."""

    metric: str | None = None  # accuracy or spearman
    method: str | None = None
    value: float | None = None
    low: float | None = None  # lower end of the 95 % interval over items
    high: float | None = None
    train_items: int | None = None
    test_items: int | None = None
    confusion: tuple[tuple[int, ...], ...] = ()  # [true class][answered class], counts
    judged: str = ""  # which form of the model was evaluated
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
    """Device and runtime of the run; ``measures`` is True if all measurements were made there."""

    device: str
    runtime: str
    title: str | None = None
    measures: bool = True
    confidence: float | None = None  # probability with which limits on predictions had to hold
    cpu: str | None = None
    cores: int | None = None
    runtime_version: str | None = None
    threads: int = 1
    instructions: str | None = later(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget, and CPU seconds spent by each phase so far.

    A budget in ``cpu_s`` counts every phase. Other budgets count only trainings, in ``unit``: seconds of their device
    (cpu or gpu), or tokens.
    """

    cpu_s: float | None = None  # None if only trainings count
    spent: dict[str, float] = field(default_factory=dict)  # CPU seconds on this machine, by phase in order
    unit: str = "cpu"
    allowed: float | None = None  # budget for trainings, if only they count
    charged: float | None = None
    device: str = "cpu"  # device of the trainings: cpu or gpu
    footprint: Footprint | None = None  # joules and CO2 of ``spent``

    @property
    def usage(self) -> str:
        """Used and available budget, as a clause."""
        used = words.quantity(sum(self.spent.values()), "time")
        if self.cpu_s is not None:
            return f"{used} of its {words.quantity(self.cpu_s, 'time')} of CPU time"
        if not self.charged:
            return f"{used} of CPU time on the machine that searched, and trained nothing"
        kind = "count" if self.unit == "tokens" else "time"
        of = "tokens" if self.unit == "tokens" else f"{self.unit.upper()} time"
        taken, whole = (words.quantity(value, kind) for value in (self.charged, self.allowed))
        return f"{taken} of its {whole} of {of} for trainings, and {used} of CPU time on the machine that searched"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSummary:
    """Size of the space, and the number of candidates screened by predicted cost."""

    size: int
    choices: dict[str, object] = field(default_factory=dict)  # values to choose from, by name
    priced: int | None = None
    priced_per_s: float | None = None  # distinct candidates
    widened: str | None = later(None)  # which values the search added to those of the run file, and why
    aligned: str | None = later(None)  # what widths that suit the chip's tiles buy
    feasible_share: float | None = None  # share of the first distinct candidates that is predicted to be feasible


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """The text that models were trained, validated and tested on."""

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
    """One point of a training curve. CPU seconds and tokens count from the trial's first step, over all rungs."""

    cpu_s: float
    tokens: int
    train_loss: float | None = None
    val_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate: its choices and results. Metrics are in SI units, by name."""

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
    feasible: bool | None = None  # by measurement if there is one, else by prediction
    reason: str | None = None  # why it failed, was pruned, or is not clean
    started: str | None = None  # ISO 8601
    ended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A prediction from before the measurement, and the measured value."""

    trial: int
    metric: str
    promised: float
    low: float | None = None
    high: float | None = None
    measured: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Expected effect of relaxing one limit by ``share``, by the quality model."""

    limit: str  # the limited metric
    share: float
    best: dict[str, tuple[float | None, ...]] = field(default_factory=dict)  # objective -> (without, with relaxation)
    gain: float | None = None  # relative gain in hypervolume of the expected front; None without a front
    std: float | None = None  # standard deviation of bits per byte at the design with the largest gain
    summary: str | None = None  # description of that design; None if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What the whole budget could have bought without a search: a reference design, and its expected loss."""

    summary: str
    expected: tuple[float, float, float]  # loss, and its 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What the prior expected of trainings before the first one, and how right it was."""

    expected: tuple[float, float, float]  # loss of the winner after its training, and its 90 % interval
    loss: float  # that the winner reached, as exported where it was
    tau: float | None = None  # Kendall's, between expected and real losses of first trainings; None with few of them
    trainings: int = 1  # designs that were trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Explanation of the result. Quality is the expected value after a full training."""

    knee: int | None = None
    knee_why: str | None = None
    knee_expected: float | None = None  # bits per byte
    relaxed: tuple[Relaxed, ...] = ()
    importance: dict[str, dict[str, float]] = field(default_factory=dict)  # objective -> choice -> share of variance
    alternatives: tuple[Alternative, ...] = ()
    foreseen: Foreseen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Another device of the run, by its data sheet: expected costs of trials, and its front."""

    device: str
    title: str
    runtime: str | None = None
    costs: dict[str, dict[str, float]] = field(default_factory=dict)  # trial -> metric -> value
    bounds: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)  # 90 % intervals, same keys as costs
    front: tuple[int, ...] = ()
    carried: dict[str, float] = field(default_factory=dict)  # by device: share of its front reached by this one's
    ranks: dict[str, float] = field(default_factory=dict)  # by device: rank correlation of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The pretrained model that a run cut. The winner is the cut, the baseline is truncation to the first layers."""

    source: str
    original: int  # trial of the original
    method: Literal["exact", "shared"]
    steps: int | None = None  # healing steps of each contender
    distances: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by trial: as cut, after healing; 0: equal


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScore:
    """Test data behind the scores of winner and reference design."""

    entries: int
    bytes: int
    difference_std_error: float | None = None  # standard error of the log ratio of the two losses, over entries
    std_errors: tuple[float | None, ...] = ()  # standard error of each loss, over entries

    __test__ = False  # tells pytest that this is not a test class


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLaw:
    """Results of a search without training: the law that ranked designs, and the winner's training plan."""

    source: str  # of the law
    tokens: float  # training tokens of every design
    change: Predicted | None = None  # in nats per token: the winner's expected loss minus the reference design's
    notes: tuple[str, ...] = ()  # properties outside the range of the law's trainings
    plan: str | None = None  # the winner's training plan in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Greedy continuations of the beginning of a test entry, by winner and reference design."""

    prompt: str
    winner: str = ""
    baseline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunRecord(Result):
    """One search, from its specification to its results.

    Raises:
        SpecError: Two trials have the same number, or a number refers to no trial.
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
    law: ByLaw | None = None  # only if nothing was trained
    start: Start | None = None  # only if the run started from a pretrained model
    stopped: str | None = None  # error that ended a partial run
    notes: tuple[str, ...] = ()  # limitations, and unclean measurements

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
        """The run, how far it came, and its winner."""
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
        """The vocabulary of the record's task."""
        return Words(task_named(self.task))

    def trial(self, number: int | None) -> Trial | None:
        """The trial with this number; None if there is none."""
        return next((item for item in self.trials if item.number == number), None)

    def role(self, trial: Trial) -> Role:
        """Role of the trial in this run; a baseline that wins is the winner."""
        if trial.number == self.winner:
            return "winner"
        if self.start is not None and trial.number == self.start.original:
            return "original"
        return "baseline" if trial.number == self.baseline else "candidate"

    def to_plain(self) -> dict[str, object]:
        """The record as JSON values.

        Raises:
            SpecError: A number is NaN or infinite; unknown numbers must be None.
        """
        plain = {"schema": self.schema, **dataclasses.asdict(self)}
        return {name: convert(object, value, name) for name, value in plain.items()}

    @classmethod
    def from_plain(cls, data: object, *, file: str | None = None) -> RunRecord:
        """Reads the output of ``to_plain``; missing parts count as unknown.

        Raises:
            SpecError: Another schema version, an unknown field, or a value of the wrong type.
        """
        if isinstance(data, Mapping) and data.get("schema", SCHEMA) != SCHEMA:
            raise SpecError(
                f"this record has version {data['schema']!r} and this chipwise reads {SCHEMA!r}; "
                "draw it with the version that wrote it",
                file=file,
                field="schema",
            )
        return build(cls, _today(data), file=file)


def _today(data: object) -> object:
    """A stored record with current field names, without removed fields; :func:`build` refuses malformed ones."""
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
    """A stored answer without removed fields."""
    return {name: value for name, value in stored.items() if name not in _GONE_OF_ANSWER}


def save(record: RunRecord, path: str | Path) -> None:
    """Writes the record as JSON, atomically."""
    write_json(path, record.to_plain())


def load(path: str | Path) -> RunRecord:
    """Reads a record from a JSON file.

    Raises:
        SpecError: No such file, not JSON, or not a record.
    """
    return RunRecord.from_plain(read_json(path), file=str(path))

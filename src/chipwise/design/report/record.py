"""RunRecord: everything that a report says about one search, as plain values that ``record.json`` keeps.

The record is derived from the study, holds SI values and draws nothing. What is not known yet is None or empty:
a run that stopped half way makes a record too.
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
from chipwise.errors import SpecError
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.model import Predicted
from chipwise.training.tasks.protocol import task_named

SCHEMA: Final = "chipwise.run/1"
State = Literal["priced", "trained", "measured", "failed", "pruned"]
Role = Literal["candidate", "winner", "baseline", "original"]
_GONE = {"operators", "roofs", "peaks", "memory", "per_thousand"}  # of older records: nothing shows them


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The score of one contender on the held-out items of a task; ``failed`` is why it could not be evaluated."""

    metric: str | None = None  # accuracy or spearman
    method: str | None = None
    value: float | None = None
    low: float | None = None  # lower end of the 95 % interval over items
    high: float | None = None
    train_items: int | None = None
    test_items: int | None = None
    confusion: tuple[tuple[int, ...], ...] = ()  # [true class][answered class], counts
    judged: str = ""  # which form answered
    failed: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.failed is None):
            raise SpecError("holds either a value or why there is none", field="value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task of the run: its classes, and the score of a bag of words on the same items."""

    name: str
    classes: tuple[str, ...] = ()
    bar: TaskScore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Kendall's rank correlation of a predictor with trainings; ``tau`` is None if there is too little data."""

    candidates: int
    pairs: int
    tau: float | None = None
    low: float | None = None  # lower end of the 95 % interval over candidates
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """One cheap predictor of quality, compared with longer trainings."""

    name: str
    overall: Agreement
    equal_latency: Agreement  # pairs of candidates within 5 % of one predicted latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Rank correlations of each predictor for the candidates that were trained for ``cpu_s``."""

    cpu_s: float
    candidates: int
    fidelities: tuple[Fidelity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device and runtime that the run designs for; where ``measures`` holds, every measurement was made there."""

    device: str
    runtime: str
    title: str | None = None
    measures: bool = True
    confidence: float | None = None  # with which limits on predictions had to hold
    cpu: str | None = None
    cores: int | None = None
    runtime_version: str | None = None
    threads: int = 1
    instructions: str | None = later(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget, and CPU seconds spent by each phase so far.

    A budget of ``cpu_s`` counts every phase. Others count trainings alone, in ``unit``: seconds of what they run on
    (cpu or gpu), or tokens.
    """

    cpu_s: float | None = None  # None if trainings alone count
    spent: dict[str, float] = field(default_factory=dict)  # phase -> CPU seconds here, in the order in which phases ran
    unit: str = "cpu"
    allowed: float | None = None  # of trainings, where they alone count
    charged: float | None = None
    device: str = "cpu"  # what trained: cpu or gpu

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
    choices: dict[str, object] = field(default_factory=dict)  # name -> the values that may be chosen
    priced: int | None = None
    priced_per_s: float | None = None  # distinct candidates
    feasible_share: float | None = None  # of the distinct candidates drawn first, by prediction


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
    """One point of a training curve; CPU seconds and tokens count from the trial's first step, over all rungs."""

    cpu_s: float
    tokens: int
    train_loss: float | None = None
    val_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate: its choices and results. Metrics have their names as keys, SI values."""

    number: int
    state: State
    summary: str  # such as "d192 L4 swiglu…"
    weights: str  # number format of the deployed weights
    rung: int | None = None  # of successive halving; None before training
    choices: dict[str, object] = field(default_factory=dict)
    parameters: int | None = None
    loss: float | None = None  # loss on the validation text, trained weights
    perplexity: float | None = None
    quantised_loss: float | None = None  # loss on the validation text, by the exported artefact
    test_loss: float | None = None  # loss on the test text, which selected nothing, by the exported artefact
    train_cpu_s: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    predicted: dict[str, Predicted] = field(default_factory=dict)  # written once, before anything of it was measured
    believed_now: dict[str, Predicted] = field(default_factory=dict)  # by the cost model after all measurements
    measured: dict[str, float] | None = None
    measured_bounds: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)  # 95 % intervals
    tasks: dict[str, TaskScore] = field(default_factory=dict)  # by the task's name
    clean: bool | None = None  # whether the machine was quiet while measuring
    chances: dict[str, float | None] = field(default_factory=dict)  # chances that limits on predictions hold
    feasible: bool | None = None  # by measurement where there is one, else by prediction
    reason: str | None = None  # why it failed, was pruned, or is not clean
    started: str | None = None  # ISO 8601
    ended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A sample of the candidates that were only priced, column by column."""

    tpot_p50_s: tuple[float, ...] = ()
    peak_memory_bytes: tuple[float, ...] = ()
    parameters: tuple[int, ...] = ()
    feasible: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if len({len(self.tpot_p50_s), len(self.peak_memory_bytes), len(self.parameters), len(self.feasible)}) > 1:
            raise SpecError("the columns must be equally long")


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
class HistoryPoint:
    """State of the search when a trial ended."""

    elapsed_cpu_s: float
    trial: int | None = None
    best_loss: float | None = None  # lowest so far among feasible trials
    hypervolume: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Expected effect of relaxing one limit by ``share``, by the quality model."""

    limit: str  # the metric
    share: float
    best: dict[str, tuple[float | None, ...]] = field(default_factory=dict)  # objective -> (as it is, relaxed)
    gain: float | None = None  # hypervolume of the expected front that it adds, as a share; None: there was none before
    std: float | None = None  # of bits per byte at the design that adds most
    summary: str | None = None  # of that design; None if relaxing adds none


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What the whole budget could have bought without a search: a reference design, and its expected loss."""

    summary: str
    expected: tuple[float, float, float]  # loss, and its 90 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Explanation of the answer. Quality is the expected value after a full training."""

    knee: int | None = None
    knee_why: str | None = None
    knee_expected: float | None = None  # bits per byte
    relaxed: tuple[Relaxed, ...] = ()
    importance: dict[str, dict[str, float]] = field(default_factory=dict)  # objective -> choice -> share of variance
    growth: tuple[float, ...] = ()  # hypervolume after each candidate
    growth_random: tuple[float, ...] = ()  # average for random candidates within the limits
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """One more device of the run, by its data sheet: expected costs of trials, and its front."""

    device: str
    title: str
    runtime: str | None = None
    costs: dict[str, dict[str, float]] = field(default_factory=dict)  # trial -> metric -> value
    bounds: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)  # likewise, 90 % intervals
    front: tuple[int, ...] = ()
    carried: dict[str, float] = field(default_factory=dict)  # device -> share of its front that this one's reaches
    ranks: dict[str, float] = field(default_factory=dict)  # device -> rank correlation of costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The pretrained model that a run cut: the winner is the cut, the baseline the model's first layers alone."""

    source: str
    original: int  # its trial
    method: Literal["exact", "shared"]
    steps: int | None = None  # of healing, for each
    distances: dict[str, tuple[float, ...]] = field(default_factory=dict)  # trial -> as cut, and healed; 0: the same


@dataclass(frozen=True, slots=True, kw_only=True)
class TestScore:
    """Test data behind the scores of winner and reference design."""

    entries: int
    bytes: int
    difference_std_error: float | None = None  # of the logarithm of their ratio, over entries
    std_errors: tuple[float | None, ...] = ()  # of each one's own loss, over entries

    __test__ = False  # no test case, whatever its name looks like


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLaw:
    """Findings of a search that trained nothing: the law that ranked its designs, and the winner's training plan."""

    source: str  # of the law
    tokens: float  # that every design would be trained on
    change: Predicted | None = None  # nats per token: the winner's expected loss less the reference design's
    notes: tuple[str, ...] = ()  # what lies outside the law's trainings
    plan: str | None = None  # of the winner's training, in a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Greedy continuations of the beginning of a test entry by winner and reference design."""

    prompt: str
    winner: str = ""
    baseline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunRecord(Result):
    """One search, from its specification to its results.

    Raises:
        SpecError: Two trials share a number, or a number names no trial.
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
    task: str = "text"  # what was asked of models, whose loss this record compares
    constraints: tuple[Constraint, ...] = ()
    objectives: tuple[Objective, ...] = ()
    data: DataSummary | None = None
    trials: tuple[Trial, ...] = ()
    cloud: Cloud = field(default_factory=Cloud)
    winner: int | None = None
    baseline: int | None = None
    knee: int | None = None
    front: tuple[int, ...] = ()
    promised_measured: tuple[Promise, ...] = ()
    launch_overhead_s: float | None = None
    history: tuple[HistoryPoint, ...] = ()
    answer: Answer = field(default_factory=Answer)
    tasks: tuple[TaskSummary, ...] = ()
    rankings: tuple[Ranking, ...] = ()  # longest trainings first
    elsewhere: tuple[Elsewhere, ...] = ()
    test: TestScore | None = None
    continuations: tuple[Continuation, ...] = ()
    samples: dict[str, object] = field(default_factory=dict)  # what models do with test data, as their task shows it
    law: ByLaw | None = None  # where nothing was trained and a law of loss ranked the designs
    start: Start | None = None  # where the run started from a pretrained model
    stopped: str | None = None  # why a partial run ended, where an error ended it
    notes: tuple[str, ...] = ()  # limits, and anything unclean

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
        """The vocabulary of its task."""
        return Words(task_named(self.task))

    def trial(self, number: int | None) -> Trial | None:
        """The trial with this number, if there is one."""
        return next((item for item in self.trials if item.number == number), None)

    def role(self, trial: Trial) -> Role:
        """Role of the trial in this run; a baseline that wins is the winner."""
        if trial.number == self.winner:
            return "winner"
        if self.start is not None and trial.number == self.start.original:
            return "original"
        return "baseline" if trial.number == self.baseline else "candidate"

    def to_plain(self) -> dict[str, object]:
        """The record as JSON holds it.

        Raises:
            SpecError: A number is NaN or infinite; what is unknown is None.
        """
        plain = {"schema": self.schema, **dataclasses.asdict(self)}
        return {name: convert(object, value, name) for name, value in plain.items()}

    @classmethod
    def from_plain(cls, data: object, *, file: str | None = None) -> RunRecord:
        """Reads a record written by ``to_plain``; missing parts count as unknown.

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
    """A stored record with current names of losses, without what is gone; :func:`build` refuses malformed ones."""
    if not isinstance(data, Mapping):
        return data

    def renamed(item: object) -> object:
        if not isinstance(item, Mapping):
            return item
        found = losses_renamed(item)
        if isinstance(found.get("curve"), list | tuple):
            found["curve"] = [renamed(point) for point in found["curve"]]
        return found

    lists = {name: data.get(name) for name in ("trials", "history")}
    kept = {name: value for name, value in data.items() if name not in _GONE}
    return {**kept, **{name: [renamed(i) for i in held] for name, held in lists.items() if isinstance(held, list)}}


def save(record: RunRecord, path: str | Path) -> None:
    """Writes the record as JSON, atomically."""
    write_json(path, record.to_plain())


def load(path: str | Path) -> RunRecord:
    """Reads a record from a JSON file.

    Raises:
        SpecError: No such file, not JSON, or not a record.
    """
    return RunRecord.from_plain(read_json(path), file=str(path))

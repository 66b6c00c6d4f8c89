"""Searches a user's module: times networks, trains some briefly, and trains the best one for the rest of the budget.

1. Networks sampled from the space are exported and timed. A Gaussian process on their choices predicts latency and
   size of all other networks. If the space has few networks, all are timed.
2. Of the sampled networks that are predicted to meet the limits, the largest 10 % (at least 16 networks) set a minimum
   size. Some networks that meet limits and minimum size are trained briefly; the strategy chooses them one after
   another from the losses so far. Smaller networks are excluded, because brief training favours them and long training
   does not. Size is a good predictor of quality: parameters and FLOPs rank networks as well as most proxies
   (Ning et al. 2021, arXiv:2008.03064).
3. The best network whose measured costs meet the limits is trained further for the rest of the CPU budget. If no
   measured network meets the limits, the one that exceeds them least is trained.

A search that was stopped continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.digest import plain
from chipwise.core.fields import build
from chipwise.core.files import read_mapping, write_json
from chipwise.core.record import Record
from chipwise.core.statistics import Z90
from chipwise.design.limits import Constraint, relative_excess
from chipwise.design.modules.evaluating import finish_row, price_row, train_row, weights_of
from chipwise.design.modules.user_module import Choice, UserModule, read_module
from chipwise.design.phases.halving import plan_alone
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.ledger import Ledger
from chipwise.design.strategies.executors import Evaluate, Processes
from chipwise.design.strategies.gaussian_process import GaussianProcess
from chipwise.design.strategies.optimise import SearchResult, optimise, study_of
from chipwise.design.strategies.strategy import Goal, Limit, Problem, Rows
from chipwise.errors import Infeasible, InputError, StudyError, WorkerError
from chipwise.predict.cost.model import Predicted
from chipwise.training.laws.scaling import START

SCHEMA = "chipwise.module_search/1"
COSTS = ("ttft_p50", "parameters")  # costs of a pass of the exported network, named as limits are
PRICED, PRICED_WHOLE = 48, 96  # networks that are timed; size of the largest space that is timed whole
SPREAD = 0.1  # standard deviation of the ln of final losses, over networks of a space
AGREEMENT = {9: 0.6, 27: 0.4}  # key k: correlation of ln losses after 1/k of the training and after all of it
OVERHEAD = 1.1  # CPU time per second of training, including building, loading data and validation
LARGE, LEAST_LARGE = 0.1, 16  # the largest networks within the limits are trained: their share, and least number
MEASURED = 4  # most of the best networks that are measured before one is trained to the end
HANGS_AFTER_S, SLOWEST = 120.0, 20.0  # training counts as hung after these seconds plus this many times its CPU budget
POOL = 4_096  # sampled networks whose predicted costs show whether any meets the limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleResult:
    """The winner of a search over a user's module, and what the search cost.

    Attributes:
        choices: The winner's value for each choice.
        loss: Validation loss after the winner's long training.
        test: What the module's ``test`` returned.
        promised: Costs that were predicted before the winner was trained.
        measured: ``ttft_p50`` and ``ttft_p99`` of a pass in seconds (one thread, processor time), ``parameters``.
        priced: Number of networks that were timed.
        trained: Number of networks that were trained briefly, for ``short_s`` CPU seconds each.
        final_s: CPU seconds of the winner's long training.
        failed: Number of training runs that failed.
        spent_s: CPU seconds by phase.
        folder: Folder with the winner's graph and weights.
    """

    choices: dict[str, Choice]
    loss: float
    test: float | None
    promised: dict[str, Predicted]
    measured: dict[str, float]
    priced: int
    trained: int
    failed: int
    short_s: float
    final_s: float
    spent_s: dict[str, float]
    folder: str


Tell = Callable[[str, int, int], None]  # called with the phase, finished and requested evaluations


class ModuleSearch:
    """Runs one search over a user's module.

    Args:
        file: The user's module.
        limits: Limits on ``ttft_p50`` (the time of one pass) and ``parameters``.
        cpu_s: CPU seconds for the whole search.
        folder: The run's folder; if it contains a stopped run, this run is continued.
        workers: Number of networks that are timed or trained in parallel.
        seed: Random seed.
        strategy: A name from ``chipwise strategies``.
        tell: Called with the phase, the number of finished evaluations, and the number of all evaluations.
    """

    def __init__(
        self,
        file: Path,
        limits: Sequence[Constraint],
        *,
        cpu_s: float,
        folder: Path,
        workers: int = 1,
        seed: int = 0,
        strategy: str = "auto",
        tell: Tell = lambda phase, done, wanted: None,
    ) -> None:
        self.user: UserModule = read_module(file)
        self._limits, self._cpu_s, self._folder, self._workers = tuple(limits), cpu_s, folder, workers
        self._seed, self._strategy, self._tell = seed, strategy, tell
        self._cards, self._kinds = self.user.cardinalities, tuple(self.user.choices)
        folder.mkdir(parents=True, exist_ok=True)
        self._check_same()
        self._ledger = Ledger({}, file=folder / "spent.json")
        self._storage = folder / "study.journal"

    def run(self) -> ModuleResult:
        """Runs the search, or the remaining steps of a stopped search.

        Raises:
            InputError: The module cannot be used, or the budget is too small.
            Infeasible: No sampled network is predicted to meet the limits, or all evaluations of networks failed.
        """
        known = self._folder / "result.json"
        if known.exists():
            return build(ModuleResult, read_mapping(known), file=str(known))
        self._ledger.begin("pricing")
        self._predictor = self._priced()
        plan = self._plan()
        self._ledger.begin("short trainings")
        trained = self._trained(plan[0][0], plan[0][1]) if len(plan) > 1 else None
        self._ledger.begin("measuring")
        row = self._best(trained)
        self._ledger.begin("long training")
        return self._finished(row, trained, short_s=plan[0][0] if trained else 0.0)

    def _check_same(self) -> None:
        """Checks that a search stored in the folder has the same settings; stores the settings."""
        about = {
            "schema": SCHEMA,
            "choices": {name: list(values) for name, values in self.user.choices.items()},
            "limits": [f"{item.metric} {item.text}" for item in self._limits],
            "cpu_s": self._cpu_s,
            "seed": self._seed,
            "strategy": self._strategy,
        }
        known = self._folder / "search.json"
        if known.exists():
            before = read_mapping(known)
            differ = [name for name, value in about.items() if before.get(name) != value]
            if differ:
                raise StudyError(
                    f"{self._folder}: contains a search with different {', '.join(differ)}; choose another --out"
                )
        write_json(known, about)

    def _evaluated(
        self, problem: Problem, evaluate: Evaluate, count: int, *, name: str, strategy: str, timeout_s: float
    ) -> SearchResult:
        found = optimise(
            problem,
            evaluate,
            evaluations=count,
            strategy=strategy,
            seed=self._seed,
            workers=self._workers,
            storage=self._storage,
            name=name,
            batch=max(1, 2 * self._workers),
            timeout_s=timeout_s,
            on_progress=lambda done, wanted: self._tell(name, done, wanted),
        )
        self._ledger.save()
        if not len(found.rows):
            reasons = [trial.notes.get("reason") for trial in study_of(problem, self._storage, name=name).trials()]
            first = next((str(reason) for reason in reasons if reason), "no reason was recorded")
            raise Infeasible(f"{self.user.file.name}: every network failed ({name}): {first}")
        return found

    def _priced(self) -> CostPredictor:
        """Times networks: a sample of the space, or all networks of a small space."""
        size = float(np.prod(self._cards.astype(float)))
        problem = Problem(cardinalities=self._cards, kinds=self._kinds, goals=tuple(Goal(name=name) for name in COSTS))
        evaluate = partial(price_row, file=str(self.user.file), folder=str(self._folder), seed=self._seed)
        count = int(size) if size <= PRICED_WHOLE else PRICED
        found = self._evaluated(problem, evaluate, count, name="pricing", strategy="random", timeout_s=HANGS_AFTER_S)
        return CostPredictor(self.user, found.rows, found.objectives)

    def _plan(self) -> list[tuple[float, int]]:
        """CPU seconds per training run and number of runs: first of the short runs, if any, then of the long run."""
        known = self._folder / "plan.json"
        if known.exists():
            return [(float(cpu_s), int(count)) for cpu_s, count in Record(read_mapping(known)).sequence("plan", list)]
        left = (self._cpu_s - self._ledger.total_s) / OVERHEAD
        allowance = Allowance(unit="cpu", total=self._cpu_s, final=self._cpu_s / 2, whole=True, alone=True)
        if left <= 0:
            raise InputError(
                f"timing networks took {self._ledger.total_s:.0f} of {self._cpu_s:.0f} CPU seconds; raise --cpu"
            )
        rungs = plan_alone(allowance, left, slope=START.slope, spread=SPREAD, agreement=AGREEMENT)
        plan = [(rung.budget, rung.count) for rung in rungs]
        write_json(known, {"plan": plan})
        return plan

    def _trained(self, cpu_s: float, count: int) -> SearchResult:
        smaller = self._smaller(self._within())
        problem = Problem(
            cardinalities=self._cards,
            kinds=self._kinds,
            goals=(Goal(name="loss"),),
            limits=tuple(Limit(name=name, free=True) for name in (*(item.metric for item in self._limits), "size")),
            free=lambda rows: (np.zeros((len(rows), 0)), np.column_stack([self._excess(rows), smaller(rows)])),
        )
        started = self._folder / "started"
        started.mkdir(exist_ok=True)
        evaluate = partial(train_row, file=str(self.user.file), cpu_s=cpu_s, seed=self._seed, folder=str(started))
        hangs_s = HANGS_AFTER_S + SLOWEST * cpu_s
        name = "short trainings"
        return self._evaluated(problem, evaluate, count, name=name, strategy=self._strategy, timeout_s=hangs_s)

    def _smaller(self, within: Rows) -> Callable[[Rows], Float64Array]:
        """Returns a function that is above 0 for networks below the minimum size, and at most 0 for all others.

        The largest 10 % (at least 16 networks) of ``within`` set the minimum size.
        """

        def logs(rows: Rows) -> Float64Array:
            costs = self._predictor.costs(rows)
            return np.column_stack([np.log(costs[name]) for name in COSTS])

        known = logs(within := np.unique(within, axis=0))
        spread = np.maximum(known.std(axis=0), 1e-6)
        share = min(1.0, max(LARGE, LEAST_LARGE / len(within)))
        least = float(np.quantile((known / spread).sum(axis=1), 1 - share)) - 1e-9
        return lambda rows: least - (logs(rows) / spread).sum(axis=1)

    def _excess(self, rows: Rows) -> Float64Array:
        """By how much n networks are predicted to exceed k limits, relative to each limit, (n, k)."""
        costs = self._predictor.costs(rows)
        return np.column_stack([relative_excess(item, costs[item.metric]) for item in self._limits])

    def _within(self) -> Rows:
        """Networks sampled from the space that are predicted to meet the limits.

        Raises:
            Infeasible: No sampled network is predicted to meet them.
        """
        problem = Problem(cardinalities=self._cards, goals=(Goal(name="loss"),))
        drawn = problem.draw(POOL, np.random.default_rng(self._seed))
        within = drawn[(self._excess(drawn) <= 0).all(axis=1)]
        if not len(within):
            raise Infeasible(self._closest(drawn))
        return within

    def _closest(self, rows: Rows) -> str:
        excess = self._excess(rows)
        best = int(excess.max(axis=1).argmin())
        item = self._limits[int(excess[best].argmax())]
        value = self._predictor.costs(rows[best : best + 1])[item.metric][0]
        return (
            f"no network of {self.user.file.name} is predicted to meet {item.metric} {item.text}; the closest of "
            f"{len(rows):,} has {item.show(float(value))}: {self.user.chosen(rows[best])}"
        )

    def _best(self, trained: SearchResult | None) -> Rows:
        """Measures the networks with the lowest losses; returns the best one that meets the limits.

        If none does, returns the one that exceeds them least.
        """
        known = self._folder / "winner.json"
        if known.exists():
            return np.array(Record(read_mapping(known)).sequence("row", int), np.int64)
        rows = self._ranked(trained)[:MEASURED]
        evaluate = partial(price_row, file=str(self.user.file), folder=str(self._folder), seed=self._seed)
        over: list[float] = []
        for row in rows:
            costs = dict(zip(COSTS, _alone(evaluate, row, HANGS_AFTER_S), strict=True))
            over.append(max((item.excess(costs[item.metric]) for item in self._limits), default=0.0))
            if over[-1] <= 0:
                break
        chosen = next((i for i, excess in enumerate(over) if excess <= 0), int(np.argmin(over)))
        write_json(known, {"row": rows[chosen].tolist()})
        return np.asarray(rows[chosen])

    def _ranked(self, trained: SearchResult | None) -> Rows:
        if trained is not None:
            kept = np.flatnonzero((trained.violations <= 0).all(axis=1))
            kept = kept if len(kept) else np.arange(len(trained.rows))
            return trained.rows[kept[np.argsort(trained.objectives[kept, 0], kind="stable")]]
        within = self._within()  # nothing was trained, so the slowest network within the limits comes first
        return within[np.argsort(-self._predictor.costs(within)["ttft_p50"], kind="stable")]

    def _finished(self, row: Rows, trained: SearchResult | None, *, short_s: float) -> ModuleResult:
        folder = self._folder / "winner"
        folder.mkdir(exist_ok=True)
        left_s = max(1.0, (self._cpu_s - self._ledger.total_s) / OVERHEAD)
        self._tell("long training", 0, 1)
        promised = self._predictor.intervals(row)
        write_json(folder / "promised.json", {name: [c.value, c.low, c.high] for name, c in promised.items()})
        known = str(weights_of(row, self._folder / "started"))
        evaluate = partial(
            finish_row, file=str(self.user.file), cpu_s=left_s, seed=self._seed, folder=str(folder), started=known
        )
        loss, p50, p99, parameters, *test = _alone(evaluate, row, HANGS_AFTER_S + SLOWEST * left_s)
        self._tell("long training", 1, 1)
        result = ModuleResult(
            choices=self.user.chosen(row),
            loss=loss,
            test=test[0] if test else None,
            promised=promised,
            measured={"ttft_p50": p50, "ttft_p99": p99, "parameters": parameters},
            priced=len(self._predictor.rows),
            trained=0 if trained is None else len(trained.rows),
            failed=0 if trained is None else trained.failed,
            short_s=short_s,
            final_s=left_s,
            spent_s=dict(self._ledger.save()),
            folder=str(folder),
        )
        write_json(self._folder / "result.json", plain(result))
        return result


class CostPredictor:
    """Predicts latency and number of parameters of networks from their choices.

    Args:
        user: The user's module.
        rows: Networks that were timed, (n, d).
        values: Their latencies and parameters, (n, 2).
    """

    def __init__(self, user: UserModule, rows: Rows, values: Float64Array) -> None:
        self.rows = rows
        self._known = {row.tobytes(): value for row, value in zip(rows, values, strict=True)}
        self._columns = [_encoded(choices) for choices in user.choices.values()]
        groups = np.concatenate([np.full(table.shape[1], i) for i, table in enumerate(self._columns)])
        Z = self._encode(rows)
        logs = np.log(np.maximum(values, 1e-12))
        self._processes = [GaussianProcess(groups).fit(Z, logs[:, i]) for i in range(len(COSTS))]

    def _encode(self, rows: Rows) -> Float64Array:
        return np.concatenate([table[rows[:, i]] for i, table in enumerate(self._columns)], axis=1)

    def costs(self, rows: Rows) -> dict[str, Float64Array]:
        """Costs (n,) of networks (n, d): measured costs if there are any, else predicted ones."""
        Z = self._encode(rows)
        found = {name: np.exp(each.predict(Z)[0]) for name, each in zip(COSTS, self._processes, strict=True)}
        for i, row in enumerate(rows):
            if (known := self._known.get(row.tobytes())) is not None:
                for name, value in zip(COSTS, known, strict=True):
                    found[name][i] = value
        return found

    def intervals(self, row: Rows) -> dict[str, Predicted]:
        """Costs of one network (d,) with 90 % intervals, always predicted from its choices."""
        Z = self._encode(row[None])
        found = {}
        for name, process in zip(COSTS, self._processes, strict=True):
            mean, std = (float(each[0]) for each in process.predict(Z))
            wide = Z90 * math.hypot(std, math.sqrt(process.noise_variance))
            found[name] = Predicted.around(math.exp(mean), wide)
        return found


def _encoded(values: Sequence[Choice]) -> Float64Array:
    """Features (n, c) of a choice's n values: rank and logarithm for numbers, else a one-hot code."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(values) < 2 or min(numbers) <= 0:
        return np.eye(len(values))
    logs = np.log(numbers)
    ranks = np.argsort(np.argsort(logs)).astype(float)
    return np.column_stack([2 * ranks / ranks.max() - 1, 2 * (logs - logs.min()) / np.ptp(logs) - 1])


def _alone(evaluate: Evaluate, row: Rows, timeout_s: float) -> list[float]:
    """Evaluates one network in a separate process.

    Raises:
        WorkerError: The evaluation failed, died or hung.
    """
    pool = Processes(evaluate, 1, timeout_s=timeout_s)
    try:
        pool.submit(0, row)
        while True:
            for event in pool.poll(1.0):
                if event.kind == "result":
                    return list(event.data.objectives)
                raise WorkerError("its process died" if event.died else str(event.data["message"]))
    finally:
        pool.close()

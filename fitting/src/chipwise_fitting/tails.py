"""Ratios of P99 to P50 in measured runs: reads the tables, fits, and predicts runs whose device is left out.

The runs come from the tables in a folder that state percentiles (``energy/``: gaps between tokens; ``load_runs.csv``,
``load_percentiles.csv``, ``requests/``: times of requests) and from this repository's benchmarks. If a table has a mean
but no median, the mean is used in its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from chipwise.core.files import write_output
from chipwise.errors import InputError, SpecError
from chipwise.predict.served.tails import UNMEASURED, TailLaw, inputs_of
from chipwise_fitting.energy import PROMPTS, UNKNOWN_PROMPT
from chipwise_fitting.load_runs import recorded
from chipwise_fitting.score import LeaveOut, Row
from chipwise_fitting.table_runs import number, packed_rows

OWN = Path(__file__).parents[3] / "benchmarks"
SOURCES = {
    "engine": "vLLM on H100, B200 and two GeForce and RTX cards: ml-energy/leaderboard 0cd52da, "
    "inference-sim 7f3b2702 and ed5c1d2, casys-kaist/LLMServingSim 5daddb2",
    "processor": "ONNX Runtime 1.31 on two processors, this project's benchmarks",
    UNMEASURED: "all of these",
}
FEWEST = 8  # minimum number of runs for a separate law
T90 = {
    1: 6.314,
    2: 2.920,
    3: 2.353,
    4: 2.132,
    5: 2.015,
    6: 1.943,
    7: 1.895,
    8: 1.860,
    9: 1.833,
    10: 1.812,
    10**9: 1.645,
}
"""95 % quantiles of Student's t by degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRun:
    """A run: P50 and P99 of one of its times in seconds, and facts about its requests."""

    row_id: str
    table: str
    kind: str
    time: str  # ttft, tpot, itl or e2e
    device: str
    model: str
    median_s: float
    p99_s: float
    inputs: tuple[float, ...] = ()

    @property
    def log_ratio(self) -> float:
        """ln(P99 / P50)."""
        return math.log(self.p99_s / self.median_s)


def read(folder: Path, own: Path = OWN) -> list[TailRun]:
    """Reads every run that states a P99.

    Raises:
        SpecError: The folder holds no table with percentiles.
    """
    found = [*_energy(folder), *_load(folder), *_requests(folder)]
    if not found:
        raise SpecError("holds no table with a P99: energy/, load_runs.csv, load_percentiles.csv", file=str(folder))
    return [*found, *_processors(own)]


def _energy(folder: Path) -> Iterable[TailRun]:
    for path in sorted((folder / "energy").glob("*.csv*")):
        for row in packed_rows(path, ("row_id", "gpu_model")):
            ends = number(row.get("median_itl_ms")), number(row.get("p99_itl_ms"))
            new, batch = number(row.get("avg_output_len")), number(row.get("avg_batch_size"))
            if ends[0] is None or ends[1] is None or new is None or batch is None:
                continue
            task = path.name.partition(".")[0]
            copies = number(row.get("data_parallel")) or 1.0
            yield TailRun(
                row_id=row["row_id"], table=f"energy, {task}", kind="engine", time="itl", device=row["gpu_model"],
                model=row["model_id"], median_s=ends[0] / 1e3, p99_s=ends[1] / 1e3,
                inputs=inputs_of(PROMPTS.get(task, UNKNOWN_PROMPT), new, batch / copies),
            )  # fmt: skip


def _load(folder: Path) -> Iterable[TailRun]:
    path, named = folder / "load_runs.csv", set()
    for row in packed_rows(path, ("run", "stage", "device", "model")) if path.exists() else ():
        named.add(row["run"])
        for time in ("ttft", "tpot", "e2e"):
            median, p99 = number(row[f"{time}_s_median"]), number(row[f"{time}_s_p99"])
            if median and p99:
                yield TailRun(
                    row_id=f"{row['run']} {row['stage']} {time}", table="load_runs", kind="engine", time=time,
                    device="H100", model=row["model"], median_s=median, p99_s=p99,
                )  # fmt: skip
    path = folder / "load_percentiles.csv"
    values: dict[tuple[str, str], dict[str, str]] = {}
    for row in packed_rows(path, ("experiment", "stage", "metric", "actual")) if path.exists() else ():
        if row["experiment"] not in named and row["stage"] != "-1":  # -1 repeats all stages together
            known = values.setdefault(
                (row["experiment"], row["stage"]), {"hardware": row["hardware"], "model": row["model"]}
            )
            known[row["metric"]] = row["actual"]
    for (name, stage), known in values.items():
        for time in ("ttft", "e2e"):
            mean, p99 = number(known.get(f"{time}_mean")), number(known.get(f"{time}_p99"))
            if mean and p99:
                yield TailRun(
                    row_id=f"{name} {stage} {time}", table="load_percentiles", kind="engine", time=time,
                    device=known["hardware"], model=known["model"], median_s=mean / 1e3, p99_s=p99 / 1e3,
                )  # fmt: skip


def _requests(folder: Path) -> Iterable[TailRun]:
    for run in recorded(folder):
        after = np.maximum(run.load.new_tokens - 1, 1)
        times = {"ttft": run.ttft_s, "e2e": run.e2e_s, "tpot": (run.e2e_s - run.ttft_s) / after}
        for time, seconds in times.items():
            median, p99 = (float(np.quantile(seconds, share)) for share in (0.5, 0.99))
            yield TailRun(
                row_id=f"{run.name} {time}", table="requests", kind="engine", time=time, device=run.device,
                model=str(run.model), median_s=median, p99_s=p99,
            )  # fmt: skip


def _processors(own: Path) -> Iterable[TailRun]:
    """Yields the measured models of this repository's benchmarks, each with P50 and P99 of wall time."""
    for path in sorted(own.glob("ranking-candidates-*.csv")):
        for i, row in enumerate(packed_rows(path, ("wall_p50_s", "wall_p99_s", "machine"))):
            yield _on_processor(path, f"{i}", "ttft", row, row["wall_p50_s"], row["wall_p99_s"], row["design"])
    for path in sorted(own.glob("winner-vs-baseline-*.csv")):
        for i, row in enumerate(packed_rows(path, ("latency_p50_s", "latency_p99_s", "machine"))):
            yield _on_processor(path, f"{i}", "tpot", row, row["latency_p50_s"], row["latency_p99_s"], row["design"])
    for path in sorted(own.glob("predicted-vs-measured-xeon-*.csv")):
        known: dict[str, dict[str, dict[str, str]]] = {}
        for row in packed_rows(path, ("candidate", "metric", "stage", "raw", "machine")):
            if row["stage"] == "calibrated":
                known.setdefault(row["candidate"], {})[row["metric"]] = row
        for name, rows in known.items():
            for time in ("ttft", "tpot"):
                if (low := rows.get(f"{time}_p50")) and (high := rows.get(f"{time}_p99")):
                    yield _on_processor(path, name, time, low, low["raw"], high["raw"], name)


def _on_processor(path: Path, name: str, time: str, row: dict[str, str], median: str, p99: str, model: str) -> TailRun:
    return TailRun(
        row_id=f"{path.stem} {name} {time}", table="own benchmarks", kind="processor", time=time,
        device=row["machine"].partition(",")[0], model=model, median_s=float(median),
        p99_s=max(float(p99), float(median)),
    )  # fmt: skip


@dataclass(slots=True)
class Fitted:
    """Laws for each kind of run and time; ``constants`` has a constant ln(P99 / P50) as the rival of each law."""

    laws: dict[str, dict[str, TailLaw]] = field(default_factory=dict)
    constants: dict[tuple[str, str], float] = field(default_factory=dict)

    def law(self, run: TailRun) -> TailLaw:
        """Returns the law for a run's kind and time; if there is none, the law for unmeasured kinds."""
        return self.laws.get(run.kind, {}).get(run.time) or self.laws[UNMEASURED]["any"]


def fitted(runs: Sequence[TailRun]) -> Fitted:
    """Fits laws to these runs; a mean of fewer than ``FEWEST`` runs is shrunk towards the mean of all kinds."""
    found = Fitted()
    groups: dict[tuple[str, str], list[TailRun]] = {}
    for run in runs:
        groups.setdefault((run.kind, run.time), []).append(run)
    pooled = _pooled(list(groups.values()))
    apart = _between_devices(list(groups.values()))
    for (kind, time), own in groups.items():
        found.constants[kind, time] = float(np.mean([run.log_ratio for run in own]))
        law = _law(own, apart) if len(own) >= FEWEST else _leaning(own, pooled)
        found.laws.setdefault(kind, {})[time] = law
    found.laws[UNMEASURED] = {"any": pooled.law()}
    return found


def _columns(runs: Sequence[TailRun]) -> np.ndarray:
    return np.array([(1.0, *run.inputs) for run in runs])


def _terms(runs: Sequence[TailRun]) -> np.ndarray:
    found: np.ndarray = np.linalg.lstsq(_columns(runs), np.array([run.log_ratio for run in runs]), rcond=None)[0]
    return found


def _misses(runs: Sequence[TailRun], terms: np.ndarray) -> np.ndarray:
    """Returns logarithms of measured over predicted ratios."""
    found: np.ndarray = np.array([run.log_ratio for run in runs]) - np.maximum(_columns(runs) @ terms, 0.0)
    return found


def _law(runs: Sequence[TailRun], apart: float) -> TailLaw:
    """Fits a law by least squares; its interval is from errors of fits without the run's device or, failing that, its
    model.

    Args:
        runs: The runs.
        apart: Standard deviation between devices, for runs of a single device.
    """
    misses: list[float] = []
    devices = {run.device for run in runs}
    for device in sorted(devices):
        rest = [run for run in runs if run.device != device]
        left = [run for run in runs if run.device == device]
        if len(rest) >= FEWEST:
            misses += _misses(left, _terms(rest)).tolist()
            continue
        for model in sorted({run.model for run in left}):
            own = [run for run in left if run.model == model]
            misses += _misses(own, _terms([run for run in runs if run.model != model] or own)).tolist()
    low, high = np.quantile(misses, (0.05, 0.95))
    more = T90[10**9] * apart if len(devices) == 1 else 0.0
    inputs = np.array([run.inputs for run in runs])
    return TailLaw(
        terms=tuple(round(each, 4) for each in _terms(runs).tolist()),
        inputs=tuple((round(min(x), 4), round(max(x), 4)) for x in inputs.T.tolist()),
        below=round(-math.hypot(min(float(low), 0.0), more), 4),
        above=round(math.hypot(max(float(high), 0.0), more), 4),
        runs=len(runs),
        devices=tuple(sorted(devices)),
    )


def _between_devices(groups: Sequence[Sequence[TailRun]]) -> float:
    """Standard deviation of devices' mean errors, over kinds and times that were measured on several devices."""
    found = []
    for own in groups:
        devices = {run.device for run in own}
        kept = [[run for run in own if run.device == device] for device in sorted(devices)]
        kept = [each for each in kept if len(each) >= FEWEST]
        if len(kept) > 1:
            terms = _terms(own)
            found.append(float(np.var([np.mean(_misses(each, terms)) for each in kept], ddof=1)))
    return math.sqrt(float(np.mean(found))) if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """The pooled means of all kinds and times: the mean of these means, and the variances between and within them."""

    mean: float
    between: float
    within: float
    groups: int
    runs: int
    devices: tuple[str, ...]

    def law(self) -> TailLaw:
        """Returns the law for a kind without runs, with the uncertainty of one more kind."""
        spread = math.sqrt(self.between * (1 + 1 / self.groups) + self.within)
        return self.around(self.mean, spread, self.runs, self.devices)

    def around(self, mean: float, spread: float, runs: int, devices: tuple[str, ...]) -> TailLaw:
        """Returns a constant law with an interval computed from ``spread``."""
        half = round(T90.get(self.groups - 1, T90[10**9]) * spread, 4)
        return TailLaw(terms=(round(mean, 4),), below=-half, above=half, runs=runs, devices=devices)


def _pooled(groups: Sequence[Sequence[TailRun]]) -> Pooled:
    means = np.array([np.mean([run.log_ratio for run in own]) for own in groups])
    return Pooled(
        mean=float(means.mean()),
        between=float(means.var(ddof=1)) if len(means) > 1 else 1.0,
        within=float(np.mean([np.var([run.log_ratio for run in own]) for own in groups])),
        groups=len(groups),
        runs=sum(map(len, groups)),
        devices=tuple(sorted({run.device for own in groups for run in own})),
    )


def _leaning(runs: Sequence[TailRun], pooled: Pooled) -> TailLaw:
    """Returns a constant law for few runs: the posterior of their mean, with the means of all kinds as the prior."""
    own = float(np.mean([run.log_ratio for run in runs]))
    weight = pooled.between / (pooled.between + pooled.within / len(runs))
    spread = math.sqrt(pooled.between * (1 - weight) + pooled.within)
    devices = tuple(sorted({run.device for run in runs}))
    return pooled.around(weight * own + (1 - weight) * pooled.mean, spread, len(runs), devices)


def rows(truth: Path, leave_out: LeaveOut) -> dict[str, list[Row]]:
    """Predicts the P99 of each run from its P50 and its requests, by a fit that leaves the run's group out.

    Raises:
        InputError: There are no fits that leave out such a group.
        SpecError: The folder holds no run with a P99.
    """
    if leave_out in ("family", "vendor"):
        raise InputError(f"leave_out: tails has fits that leave out a device or a model, not a {leave_out}")
    runs = read(truth)
    folds: dict[str, Fitted] = {}

    def fold(run: TailRun) -> Fitted:
        left = "" if leave_out == "none" else run.device if leave_out == "device" else run.model
        if left not in folds:
            folds[left] = fitted([each for each in runs if left not in ((each.device, each.model) if left else ())])
        return folds[left]

    found = []
    for run in runs:
        law, constants = fold(run).law(run), fold(run).constants
        ratio = law.ratio(run.inputs)
        rival = constants.get((run.kind, run.time))
        found.append(
            Row(
                row_id=run.row_id, subset=f"{run.table}, {run.device}, {run.time}", truth=run.p99_s,
                predicted=run.median_s * ratio.value, low=run.median_s * (ratio.low or 1.0),
                high=run.median_s * (ratio.high or 1.0),
                rival=None if rival is None else run.median_s * math.exp(rival),
            )
        )  # fmt: skip
    return {"p99_s": found}


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits all laws and writes ``tails.json``; returns a report."""
    runs = read(tables)
    found = fitted(runs)
    laws = {
        kind: {time: asdict(law) for time, law in sorted(by_time.items())}
        for kind, by_time in sorted(found.laws.items())
    }
    write_output(out / "tails.json", json.dumps({"source": SOURCES, "laws": laws}, indent=1) + "\n")
    return "\n".join(
        f"{kind}, {time}: P99 / P50 {math.exp(found.constants.get((kind, time), law.terms[0])):.2f} in {law.runs} "
        f"runs, 90 % interval from 1/{math.exp(-law.below):.2f} to {math.exp(law.above):.2f} times that"
        for kind, by_time in found.laws.items()
        for time, law in by_time.items()
    )

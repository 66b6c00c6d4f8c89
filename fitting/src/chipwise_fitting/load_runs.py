"""Reads measured runs under load: the load on an engine, and separately what was measured.

There are two tables (``load_runs.csv``: one row for each run and stage, with its load; ``load_percentiles.csv``: one
row for each metric) and folders of runs with single requests (``requests/``). If a row of percentiles does not state
its load, the load of a run with the same workload and stage is used; ``_STATED`` has the loads for folders without such
a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.csvfile import read_rows
from chipwise.core.files import read_text
from chipwise.errors import ChipwiseError, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.load.load import Load

METRICS = ("e2e_mean", "e2e_p90", "e2e_p99", "itl_mean", "ttft_mean", "ttft_p90", "ttft_p99")
SEQUENCES = 128  # --max-num-seqs, equal in all runs of the table that state it
TIMEOUT_S = 300.0  # timeout of the clients: no answer of an overloaded run took longer, and the others failed
PAUSE_S = 30.0  # pause between two stages of a run

WORKLOADS = ("general-lite", "reasoning-lite", "codegen", "general", "roleplay", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    """The load of one stage of a run.

    ``outputs`` are tokens as the client counts them in the text of an answer. They differ from the generated tokens:
    the load generator asks for ``asked`` tokens, ignoring ends of text, and the client tokenises the answer's text
    again.
    """

    rate_per_s: float
    requests: int
    prompt_tokens: float
    outputs: tuple[float, float, float, float]  # mean, median, P90, P99
    prompts: int  # number of different prompts, which are sent again and again
    asked: int | None = None  # None if the run does not state it


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A run of an engine under load and its settings; ``measured`` maps (stage, metric) to seconds."""

    name: str
    source: str
    model: str
    device: str
    tp: int
    dp: int
    weights: str
    most_tokens: int
    most_sequences: int
    utilisation: float
    workload: str
    stages: Mapping[int, StageLoad]
    measured: Mapping[tuple[int, str], float]


def workload_of(name: str, said: str = "") -> str:
    """Returns the workload that a run's name or column states; only the name states lighter variants."""
    for known in WORKLOADS:
        if re.search(rf"(?:^|[-_]){known}(?:$|[-_])", name):
            return known
    return said.strip().lower()


def device_of(name: str) -> str:
    """Returns the data sheet of the GPU that a table names, found by the full name or its first word."""
    for tried in (name, re.split(r"[\s_]|-\d", name.strip())[0]):
        try:
            return datasheet.load(tried.strip().lower().replace(" ", "-")).name
        except ChipwiseError:
            continue
    return name


def runs(folder: Path) -> list[Experiment]:
    """Reads the runs of ``load_runs.csv``, with the load that each states; none if there is no such table.

    Raises:
        SpecError: The table lacks a column, or a cell is not a number.
    """
    path = folder / "load_runs.csv"
    if not path.exists():
        return []
    needed = ("run", "stage", "model", "tp", "rate_per_s", "requests", "prompt_tokens_mean", "output_tokens_mean")
    grouped: dict[str, list[dict[str, str]]] = {}
    for row in read_rows(path, required=needed):
        grouped.setdefault(row["run"], []).append(row)
    found = []
    for name, rows in grouped.items():
        first = rows[0]
        measured = {}
        for row in rows:
            stage = int(_number(row, "stage", path))
            for metric in METRICS:
                part, _, statistic = metric.partition("_")
                if part != "itl" and row.get(f"{part}_s_{statistic}"):
                    measured[stage, metric] = _number(row, f"{part}_s_{statistic}", path)
            if (stage, "e2e_mean") in measured and (stage, "ttft_mean") in measured:
                after = measured[stage, "e2e_mean"] - measured[stage, "ttft_mean"]
                measured[stage, "itl_mean"] = after / max(_number(row, "output_tokens_mean", path) - 1, 1)
        found.append(
            Experiment(
                name=name,
                source=path.name,
                model=first["model"],
                device=device_of(first.get("device") or "h100-sxm"),
                tp=int(_number(first, "tp", path)),
                dp=1,
                weights="bf16",
                most_tokens=int(float(first.get("max_num_batched_tokens") or 2048)),
                most_sequences=int(float(first.get("max_num_seqs") or SEQUENCES)),
                utilisation=0.9,
                workload=workload_of(name),
                stages={int(_number(row, "stage", path)): _stage(row, path) for row in rows},
                measured=measured,
            )
        )
    return found


def _stage(row: Mapping[str, str], path: Path) -> StageLoad:
    mean = _number(row, "output_tokens_mean", path)
    outputs = tuple(float(row.get(f"output_tokens_{name}") or mean) for name in ("median", "p90", "p99"))
    groups = float(row.get("prefix_num_unique_system_prompts") or 0)
    users = float(row.get("prefix_num_users_per_system_prompt") or 0)
    count = int(_number(row, "requests", path))
    return StageLoad(
        rate_per_s=_number(row, "rate_per_s", path),
        requests=count,
        prompt_tokens=_number(row, "prompt_tokens_mean", path),
        outputs=(mean, outputs[0], outputs[1], outputs[2]),
        prompts=int(groups * users) or count,
        asked=int(_number(row, "prefix_output_len", path)) if row.get("prefix_output_len") else None,
    )


def _number(row: Mapping[str, str], name: str, path: Path) -> float:
    try:
        value = float(row[name])
    except (KeyError, ValueError):
        value = float("nan")
    if not np.isfinite(value):
        raise SpecError(f"must be a number, not {row.get(name, '')!r}", file=str(path), field=name)
    return value


def percentiles(
    folder: Path, known: Sequence[Experiment], lighter: Mapping[str, tuple[float, ...]]
) -> list[Experiment]:
    """Reads the runs of ``load_percentiles.csv``, with loads of runs of the same workload.

    Args:
        folder: Folder of the table, which may be missing.
        known: The runs that state their loads.
        lighter: Requests per second of each stage, for workloads whose rates no run states.

    Raises:
        SpecError: The table lacks a column, or a cell is not a number.
    """
    path = folder / "load_percentiles.csv"
    if not path.exists():
        return []
    grouped: dict[str, list[dict[str, str]]] = {}
    for row in read_rows(path, required=("experiment", "stage", "metric", "model", "tp", "actual")):
        grouped.setdefault(row["experiment"], []).append(row)
    found = []
    for name, rows in grouped.items():
        first = rows[0]
        workload = workload_of(name, first.get("workload", ""))
        model, device = first["model"], device_of(first.get("hardware") or "h100-sxm")
        own = {
            stage: load
            for run in known
            if run.model == model and run.workload == workload and run.device == device
            for stage, load in run.stages.items()
        }
        numbers = sorted({int(float(row["stage"])) for row in rows if float(row["stage"]) >= 0})
        stages = {stage: own.get(stage) or _usual(workload, stage, known, lighter) for stage in numbers or [0]}
        precision = (first.get("precision") or "").lower()
        found.append(
            Experiment(
                name=name,
                source=path.name,
                model=model,
                device=device,
                tp=int(_number(first, "tp", path)),
                dp=int(float(first.get("dp") or 1)),
                weights="fp8" if "fp8" in precision else "bf16",
                most_tokens=int(float(first.get("max_num_batched_tokens") or 2048)),
                most_sequences=SEQUENCES,
                utilisation=float(first.get("gpu_mem_util") or 0.9),
                workload=workload,
                stages={stage: load for stage, load in stages.items() if load is not None},
                measured={
                    (int(float(row["stage"])), row["metric"]): _number(row, "actual", path) / 1e3 for row in rows
                },
            )
        )
    return found


def _usual(
    workload: str, stage: int, known: Sequence[Experiment], lighter: Mapping[str, tuple[float, ...]]
) -> StageLoad | None:
    """Returns the load of a workload's stage, as other runs state it; None if none states it."""
    same = [run.stages[stage] for run in known if run.workload == workload and stage in run.stages]
    if same:
        return sorted(same, key=lambda each: each.outputs[0])[len(same) // 2]
    base = workload.removesuffix("-lite")
    stated = _STATED.get(base)
    rates = lighter.get(workload) or (stated[0] if stated else ())
    if stated is None or stage >= len(rates):
        return None
    _, seconds, prompt, outputs, prompts, asked = stated
    return StageLoad(
        rate_per_s=rates[stage],
        requests=max(int(rates[stage] * seconds), 1),
        prompt_tokens=prompt,
        outputs=outputs,
        prompts=prompts,
        asked=asked,
    )


_STATED: Mapping[str, tuple[tuple[float, ...], float, float, tuple[float, float, float, float], int, int]] = {
    "codegen": ((5.0, 10.0), 600.0, 591.0, (245.0, 248.0, 249.0, 249.0), 44, 247),
    "general": ((8.0, 20.0), 600.0, 574.0, (250.4, 250.0, 253.0, 256.0), 45, 248),
    "roleplay": ((6.0,), 1200.0, 787.0, (253.5, 253.0, 256.0, 259.0), 50, 251),
    "reasoning": ((4.0,), 1200.0, 1080.0, (1430.0, 1448.0, 1450.0, 1450.0), 23, 1448),
}
"""Requests per second by stage, seconds of a stage, tokens of a prompt, tokens of an answer (mean, median, P90 and
P99), number of different prompts, requested tokens: as the table's runs state them, for folders that hold other runs.
"""


def load_of(run: Experiment, *, seed: int) -> tuple[Load, np.ndarray]:
    """Returns the requests of all stages of a run, one after another, and the stage of each.

    Stages send the same few prompts again and again; from the second time on, a prompt is found in the cache.
    """
    rng = np.random.default_rng(seed)
    arrivals, prompts, news, stages, which = [], [], [], [], []
    begun = 0.0
    for stage, load in sorted(run.stages.items()):
        count = load.requests
        arrivals.append(begun + np.arange(count) / load.rate_per_s)
        begun += count / load.rate_per_s + PAUSE_S
        prompts.append(np.full(count, round(load.prompt_tokens)))
        news.append(np.full(count, load.asked) if load.asked else answers(load.outputs, rng.random(count)))
        stages.append(np.full(count, stage))
        which.append(np.arange(count) % load.prompts)
    prompt = np.concatenate(prompts)
    made = Load(
        arrival_s=np.concatenate(arrivals),
        prompt_tokens=prompt,
        new_tokens=np.concatenate(news),
        kind=np.zeros(len(prompt), np.int64),
        prefix=np.concatenate(which),
        prefix_tokens=prompt,
    )
    return made, np.concatenate(stages)


def answers(outputs: tuple[float, float, float, float], shares: np.ndarray) -> np.ndarray:
    """Returns the quantiles ``shares`` of the tokens of answers, given their mean, median, P90 and P99 (``outputs``).

    Below the median, tokens rise linearly from a lowest value, which is chosen such that the mean is right.
    """
    mean, median, p90, p99 = outputs
    rest = 0.4 * (median + p90) / 2 + 0.09 * (p90 + p99) / 2 + 0.01 * p99
    low = min(max(4 * (mean - rest) - median, 1.0), median)
    found = np.interp(shares, [0.0, 0.5, 0.9, 0.99, 1.0], [low, median, p90, p99, p99])
    tokens: np.ndarray = np.maximum(np.round(found), 1).astype(np.int64)
    return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run with a record of every request: settings, the load, and seconds since each request's arrival."""

    name: str
    model: str
    device: str
    tp: int
    dp: int
    most_tokens: int
    most_sequences: int
    cache_tokens: float | None
    identities: tuple[str, ...]
    load: Load
    ttft_s: np.ndarray
    e2e_s: np.ndarray


def recorded(folder: Path) -> list[Recorded]:
    """Reads the runs of the folders below ``requests/``, if any.

    Raises:
        SpecError: A file is missing or lacks a field.
    """
    root = folder / "requests"
    places = sorted(root.iterdir()) if root.is_dir() else []
    return [_recorded(place) for place in places if (place / "requests.jsonl").exists()]


def _recorded(place: Path) -> Recorded:
    path = place / "requests.jsonl"
    try:
        settings = json.loads(read_text(place / "meta.json"))
        rows = [json.loads(line) for line in read_text(path).splitlines() if line.strip()]
        engine = settings["engine_kwargs"]
        columns = {
            name: np.array([float(row[name]) for row in rows])
            for name in ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
        }
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise SpecError(f"cannot be read: {type(error).__name__} {error}", file=str(path)) from None
    count = len(rows)
    order = np.argsort(columns["queued_ts"], kind="stable")
    arrival = columns["queued_ts"] - columns["queued_ts"].min()
    load = Load(
        arrival_s=arrival[order],
        prompt_tokens=columns["input_toks"][order].astype(np.int64),
        new_tokens=np.maximum(columns["output_toks"][order], 1).astype(np.int64),
        kind=np.zeros(count, np.int64),
        prefix=np.full(count, -1),
        prefix_tokens=np.zeros(count, np.int64),
    )
    hardware = str((settings.get("hardware") or {}).get("device_name") or place.name.split("-")[0])
    return Recorded(
        name=place.name,
        model=settings["model"],
        device=device_of(_card(hardware)),
        tp=int(engine.get("tensor_parallel_size") or 1),
        dp=int(engine.get("data_parallel_size") or 1),
        most_tokens=int(engine.get("max_num_batched_tokens") or 8192),
        most_sequences=int(engine.get("max_num_seqs") or 256),
        cache_tokens=(settings.get("kv_cache") or {}).get("num_kv_tokens"),
        identities=tuple(str(rows[i].get("request_id", i)) for i in order),
        load=load,
        ttft_s=(columns["first_token_ts"] - columns["queued_ts"])[order],
        e2e_s=(columns["last_token_ts"] - columns["queued_ts"])[order],
    )


def _card(name: str) -> str:
    """Converts names such as ``RTXPRO6000`` and ``NVIDIA GeForce RTX 4090`` to those of data sheets."""
    short = re.sub(r"nvidia|geforce|blackwell|workstation edition", "", name.lower()).strip()
    return re.sub(r"^rtx[\s-]*(pro)?[\s-]*", lambda found: "rtx-pro-" if found[1] else "rtx-", short).replace(" ", "-")

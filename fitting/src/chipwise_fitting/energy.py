"""Energy of served models, images and videos: reads the tables, fits, and predicts.

Seconds are fitted first. The law of watts is fitted next, with utilisations computed from the predicted seconds. A fit
of watts that leaves a group out uses seconds from a fit that leaves out the same group.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chipwise.errors import ChipwiseError, SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.published.quantised import default_weights
from chipwise.model.published.read import resolve
from chipwise.predict.served import served_energy
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.served_energy import StepLoad, TokenWork, constants, shared, step_law
from chipwise.predict.served.setting import Setting
from chipwise.predict.whole_runs.diffusion import (
    KNOWN,
    DiffusionTransformer,
    Picture,
    base_name,
    known_name,
    picture_law,
)
from chipwise.predict.whole_runs.power_draw import Shares, mean_watts, watts_law
from chipwise.predict.whole_runs.sums import Constants, Law, value_of
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit
from chipwise_fitting.table_runs import TableRun, fit_runs, fold_name, number, packed_rows

SOURCE = "ml-energy/leaderboard 0cd52da: H100 and B200, vLLM and diffusers; figures learnt, no file copied"
NEEDED = ("row_id", "gpu_model", "model_id", "num_gpus", "avg_power_watts")
PROMPTS = {"gpqa": 250, "image-chat": 1200, "video-chat": 6000, "lm-arena-chat": 100, "sourcegraph-fim": 500}
"""Approximate prompt tokens of each task; the task's fitted terms absorb the error."""
UNKNOWN_PROMPT = 500
KINDS = ("none", "model", "device")
GPUS = {"H100": "h100-sxm", "B200": "b200-sxm", "H200": "h200-sxm", "A100": "a100-sxm-80gb"}
PRECISIONS = {"bfloat16": None, "float16": None, "fp8": "fp8", "mxfp4": "mxfp4"}
START = {
    "weights": 0.3,
    "flops.decode": 0.7,
    "cache": 0.5,
    "flops.prompt": 0.7,
    "step": math.log(1e-3),
    "kernel": math.log(3e-6),
    "sequence": math.log(2e-5),
    "request": math.log(2e-3),
    "collective": math.log(8e-6),
    "link": 0.5,
    "products": 0.5,
    "attention": 0.7,
    "launches": math.log(8e-6),
    "activations": 3.0,
    "pixels": math.log(0.3),
    "batch": math.log(5e-2),
    "exchange": 2.0,
    "exchanges": math.log(5e-5),
}
WATTS = {"awake": math.log(0.35), "memory": math.log(0.4), "compute": math.log(0.6), "attention": math.log(0.2)}


def seconds_prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term of seconds and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    if not levels:
        return START[kind], 1.0
    return 0.0, 0.4


def watts_prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term of watts and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    return (WATTS[kind], 0.5) if not levels else (0.0, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row with facts for its laws; ``law`` predicts the seconds of a step or batch of ``unit`` tokens or pictures."""

    row_id: str
    subset: str
    picture: bool
    watts: float  # measured watts of one board
    boards: int
    seconds: float | None = None  # measured seconds of what ``law`` predicts
    unit: float = 1.0
    law: Law | None = None
    shares: Callable[[float], Shares] | None = None
    device: str = ""
    family: str = ""
    vendor: str = ""
    model: str = ""
    place: str = ""
    levels: tuple[str, ...] = ()
    joules: float | None = None  # measured joules per token or picture
    problem: str = ""

    def run(self, law: Law | None, measured: float, rival: float | None = None) -> TableRun:
        """Returns the row as a ``TableRun`` with this law."""
        return TableRun(
            row_id=self.row_id,
            subset=self.subset,
            measured=measured,
            model=self.model,
            device=self.device,
            family=self.family,
            vendor=self.vendor,
            place=self.place,
            law=law,
            rival=rival,
            rival_of=("place", "device"),
            problem=self.problem,
        )


def read(path: Path) -> list[Measured]:
    """Reads every row of every table in a folder, or of one file.

    Raises:
        SpecError: There is no table, or one lacks a column.
    """
    if path.is_dir():
        folder = path / "energy" if (path / "energy").is_dir() else path
        files = [each for each in sorted(folder.glob("*.csv*")) if _is_energy(each)]
    else:
        files = [path]
    if not files:
        raise SpecError("holds no table with avg_power_watts", file=str(path))
    return [_measured(row) for file in files for row in packed_rows(file, NEEDED) if number(row["avg_power_watts"])]


def _is_energy(path: Path) -> bool:
    try:
        return bool(packed_rows(path, NEEDED))
    except SpecError:
        return False


def _measured(row: Mapping[str, str]) -> Measured:
    boards = max(1, round(number(row["num_gpus"]) or 1))
    picture = "avg_output_len" not in row
    sort = re.sub(r"-\d+$", "", row["row_id"])
    base = Measured(
        row_id=row["row_id"],
        subset=sort,
        picture=picture,
        watts=(number(row["avg_power_watts"]) or 1.0) / boards,
        boards=boards,
        joules=next((value for name in ENERGIES if (value := number(row.get(name, "")))), None),
    )
    try:
        device = datasheet.load(GPUS.get(row["gpu_model"], row["gpu_model"].lower()))
        own = _picture(row, base, device) if picture else _tokens(row, base, device, sort)
    except ChipwiseError as error:
        return replace(base, problem=str(error))
    return replace(
        own,
        device=device.name,
        family=device.family,
        vendor=device.vendor,
        model=base_name(row["model_id"]),
        place=f"{device.name}|{sort}",
    )


ENERGIES = ("energy_per_token_joules", "energy_per_image_joules", "energy_per_video_joules")


def _tokens(row: Mapping[str, str], base: Measured, device: Any, sort: str) -> Measured:
    name = row["model_id"]
    arch = resolve(name)
    weights = PRECISIONS.get(row.get("weight_precision", "")) or default_weights(name)
    mixture = any(hasattr(layer.ffn, "experts") for layer in arch.layers)
    setting = Setting(
        arch=arch,
        plan=Plan(),
        formats=formats_of(weights, None, wide="bf16", mixture=mixture),
        runtime=runtime_named("vllm"),
    )
    load = StepLoad(
        setting=shared(setting, base.boards),
        device=device,
        devices=base.boards,
        requests=max(1, round(number(row.get("max_num_seqs")) or 1)),
        prompt_tokens=PROMPTS.get(sort, UNKNOWN_PROMPT),
        new_tokens=max(1, round(number(row.get("avg_output_len")) or 512)),
        sort=sort,
    )
    work = TokenWork.of(load)
    rate = number(row.get("output_throughput_tokens_per_sec"))
    return replace(
        base,
        law=step_law(load, work),
        seconds=work.requests / rate if rate else None,
        unit=work.requests,
        shares=work.shares,
        levels=(device.name, sort, f"{device.name}|{sort}", *load.levels[1:3], f"n{base.boards}", load.levels[5]),
    )


def model_named(name: str, parameters: float) -> DiffusionTransformer:
    """Returns the known model whose name occurs in ``name``, else a model with ``parameters`` and a typical width."""
    known = known_name(name)
    if known is not None:
        return KNOWN[known]
    layers = max(12, round(28 * (parameters / 1.5e9) ** (1 / 3)))
    return DiffusionTransformer(parameters=parameters, layers=layers, width=round(math.sqrt(parameters / layers / 16)))


def _picture(row: Mapping[str, str], base: Measured, device: Any) -> Measured:
    def whole(name: str, default: int) -> int:
        return max(1, round(number(row.get(name)) or default))

    height, width = whole("image_height", whole("video_height", 1024)), whole("image_width", whole("video_width", 1024))
    picture = Picture(
        model=model_named(row["model_id"], 1e9 * (number(row.get("activated_params_billions")) or 2.0)),
        device=device,
        height=height,
        width=width,
        frames=whole("num_frames", 1),
        steps=whole("inference_steps", 28),
        batch=whole("batch_size", 1),
        devices=base.boards,
        ring=whole("ring_degree", 1),
    )
    return replace(
        base,
        law=picture_law(picture),
        seconds=number(row.get("batch_latency_s")),
        unit=float(picture.batch),
        shares=lambda seconds: Shares(
            memory=0.0, compute=picture.product_s / seconds, attention=picture.attention_s / seconds
        ),
        levels=picture.levels,
    )


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits seconds, watts and the intervals of joules, and writes ``energy.json``.

    Raises:
        SpecError: No row can be predicted.
    """
    every = [row for row in read(tables) if row.law and row.seconds and row.joules]
    found: dict[str, object] = {}
    for picture, head in ((False, "tokens"), (True, "pictures")):
        rows = [row for row in every if row.picture == picture]
        progress(f"{head}: {len(rows)} rows of {len({row.model for row in rows})} models")
        found |= _fit_sort(rows, head)
    path = out / served_energy.DATA.name
    path.write_text(
        json.dumps(found, sort_keys=True, separators=(",", ":")).replace("},", "},\n") + "\n", encoding="utf-8"
    )
    constants.cache_clear()
    return f"energy: {len(every)} rows"


def _fit_sort(rows: Sequence[Measured], head: str) -> dict[str, object]:
    kinds = [kind for kind in KINDS if kind != "none"]
    timed = [row.run(row.law, row.seconds or 1.0) for row in rows]
    seconds = fit_runs(timed, Fit(prior=seconds_prior, noise=0.1), source=SOURCE, kinds=kinds)
    held = _constants(seconds)
    watts: dict[str, Any] = {}
    for kind in ("none", *kinds):
        told = [row.run(_watts_law(row, held, kind), row.watts) for row in rows]
        own = fit_runs(told, Fit(prior=watts_prior, noise=0.04), source=SOURCE, kinds=[] if kind == "none" else [kind])
        if not watts:
            watts = own
            continue
        base, everything = watts["folds"]["none"], own["folds"]["none"]  # type: ignore[index]
        for name, terms in own["folds"].items():  # type: ignore[attr-defined]
            if name != "none":
                whole = {**everything, **terms}
                watts["folds"][name] = {key: value for key, value in whole.items() if base.get(key) != value}
    drawn = _constants(watts)
    joules = {**seconds, "folds": {"none": {}}, "halfwidths": {}}
    watts["halfwidths"] = _widths(rows, lambda row, kind: math.log(_watts(row, held, drawn, kind) / row.watts))
    joules["halfwidths"] = _widths(
        rows, lambda row, kind: math.log(_joules(row, held, drawn, kind) / (row.joules or 1.0))
    )
    return {f"{head}_s": seconds, f"{head}_w": watts, f"{head}_j": joules}


def _widths(rows: Sequence[Measured], miss: Callable[[Measured, str], float]) -> dict[str, float]:
    from chipwise.core.statistics import conformal_half_width
    from chipwise_fitting.table_runs import LEAST, LEAST_HALF_WIDTH

    situations = {"known": "none", "seen": "model", "sibling": "device", "unseen": "device"}
    misses = {kind: [miss(row, kind) for row in rows] for kind in KINDS}
    found: dict[str, float] = {}
    for place in ("*", *sorted({row.place for row in rows})):
        chosen = [i for i, row in enumerate(rows) if place in ("*", row.place)]
        least = LEAST_HALF_WIDTH
        for situation, kind in situations.items():
            if place == "*" or (len(chosen) >= LEAST and situation in ("known", "seen")):
                least = max(least, conformal_half_width([misses[kind][i] for i in chosen]))
                found[f"{situation}|{place}"] = round(least, 4)
    return found


def _constants(found: Mapping[str, Any]) -> Constants:
    sets = {name: frozenset(found[name]) for name in ("runs", "places", "devices", "vendors")}
    return Constants(
        folds=found["folds"], halfwidths=found["halfwidths"], splits=found["splits"], source=SOURCE, **sets
    )


def _predicted_s(row: Measured, held: Constants, kind: str) -> float:
    assert row.law is not None
    return float(value_of(row.law, held.terms(fold_name(row.run(row.law, 1.0), kind, held))))


def _watts_law(row: Measured, held: Constants, kind: str) -> Law:
    assert row.shares is not None
    return watts_law(datasheet.load(row.device), row.shares(_predicted_s(row, held, kind)), row.levels)


def _watts(row: Measured, held: Constants, drawn: Constants, kind: str) -> float:
    law = _watts_law(row, held, kind)
    return mean_watts(datasheet.load(row.device), law, drawn.terms(fold_name(row.run(law, 1.0), kind, drawn)))


def _joules(row: Measured, held: Constants, drawn: Constants, kind: str) -> float:
    """Returns the joules of all boards for one token or picture."""
    return _watts(row, held, drawn, kind) * row.boards * _predicted_s(row, held, kind) / row.unit


def rows(truth: Path, leave_out: str) -> dict[str, list[Row]]:
    """Predicts every row's watts over all boards, and joules per token or per picture; for pictures also seconds."""
    held = constants()
    kind = "device" if leave_out in ("family", "vendor") else leave_out
    columns: dict[str, list[Row]] = {"power_w": [], "joules_per_token": [], "latency_s": []}
    every = read(truth)
    for row in every:
        head = "pictures" if row.picture else "tokens"
        seconds, drawn, joules = (held[f"{head}_{unit}"] for unit in "swj")
        limit = datasheet.load(row.device).board_power_w if row.device else None
        column = "joules_per_token"
        if row.law is None:
            columns["power_w"].append(_unanswered(row, row.watts * row.boards))
            if row.joules:
                columns[column].append(_unanswered(row, row.joules))
            continue
        if row.picture and row.seconds:
            columns["latency_s"].append(_row(row, row.seconds, _predicted_s(row, seconds, kind), seconds, kind, None))
        watts = _watts(row, seconds, drawn, kind) * row.boards
        columns["power_w"].append(_row(row, row.watts * row.boards, watts, drawn, kind, (limit or 0.0) * row.boards))
        if row.joules:
            middle = _joules(row, seconds, drawn, kind)
            rival = (limit or 0.0) * row.boards * _predicted_s(row, seconds, kind) / row.unit
            columns[column].append(_row(row, row.joules, middle, joules, kind, rival))
    return {column: found for column, found in columns.items() if found}


def _unanswered(row: Measured, truth: float) -> Row:
    return Row(row_id=row.row_id, subset=row.subset, truth=truth, predicted=None, problem=row.problem)


def _row(row: Measured, truth: float, middle: float, held: Constants, kind: str, rival: float | None) -> Row:
    situation = held.situation(device=row.device, vendor=row.vendor, place=row.place, model=row.model, leave_out=kind)
    factor = math.exp(held.halfwidth(situation, row.place))
    return Row(
        row_id=row.row_id,
        subset=row.subset,
        truth=truth,
        predicted=middle,
        low=middle / factor,
        high=middle * factor,
        rival=rival,
    )

"""Fits ``kernels/experts.py`` to the mixture-of-experts tables of aiconfigurator-core.

For each device and stack, a call is taken from the latest version that timed it, with its fastest kernel, because
runtimes choose the fastest. Kernels that were timed differently from how they are served are left out first, see
:func:`served`. Constants are pooled over devices with equal weights; a network corrects the remaining errors. Three
situations are judged: unseen sites, unseen devices, and unseen families. A site is a combination of hidden, width, topk
and experts; a fifth of the sites is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.hardware import datasheet
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import experts
from chipwise.predict.kernels.bounded import SHIPPED, STACKS, Fitted, Network, hardware
from chipwise.predict.kernels.times import launch_s
from chipwise_fitting import bounded_training as training
from chipwise_fitting.report import Progress, Report, conformal, errors

FORMATS = {
    "bfloat16": ("bf16", "bf16"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "w4a16_mxfp4": ("mxfp4", "bf16"),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8"),
    "int4_wo": ("int4_g128", "bf16"),
}
"""Maps the tables' names of formats to our (weights, activations)."""
NOT_GATED = {(1024, 2688), (2048, 5120), (2688, 1856), (4096, 2688), (8192, 5120)}
"""(hidden, width) of models whose experts have two matrices (Nemotron 3), according to kernel names in the tables."""
KEY = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution"]
BOUND = 1.4  # largest logarithm of a correction: a factor of four either way
MEMBERS = 2  # number of networks, whose mean is the answer
ROWS_PER_CELL = 2500  # maximum number of rows of a device, stack and format
REACHES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
UNTUNED = 1.5  # median ratio to the wide format's time; kernels in the tables have up to 1.3, or 2.2 and more


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Rows of one device, stack, format, gating and routing: one vectorised operator and its measured seconds."""

    device: datasheet.DeviceProfile
    stack: str
    kind: str
    routing: str
    op: ExpertsOp
    numbers: experts.Grouped
    measured_s: Float64Array
    site: Float64Array  # a number that identifies (hidden, width, topk, experts)


Answers = list[tuple[Cell, Float64Array]]
"""Cells, each with the predicted seconds of its rows."""


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes experts.json and experts.npz into ``out``."""
    cells = read(tables, seed=seed)
    devices = {cell.device.name: cell.device.family for cell in cells}
    progress(f"experts: {sum(len(c.measured_s) for c in cells)} rows of {len(devices)} devices")
    sheets = {cell.device.name: cell.device for cell in cells}
    facts: dict[str, Any] = {
        "tables": "data/*/moe/*/*/moe_perf.parquet",
        "devices": devices,
        "hardware": {name: [round(float(v), 4) for v in hardware(sheet)] for name, sheet in sheets.items()},
        "bound": BOUND,
        "reach": 1e9,
    }
    folds = [SHIPPED, *(f"device:{name}" for name in devices), *(f"family:{name}" for name in set(devices.values()))]
    constants: dict[str, Any] = {}
    networks: dict[str, Network] = {}
    for fold in folds:
        constants[fold], networks[fold] = _fit_fold([c for c in cells if not _held(c, fold)], facts, seed=seed)
        progress(f"experts: {fold} fitted")
    judged = _judge(cells, facts, constants, networks, seed=seed, progress=progress)
    facts |= {"constants": constants, "reach": judged["reach"], "log_halfwidth": judged["log_halfwidth"]}
    facts["errors"] = judged["errors"]
    training.write("experts", out, facts, networks)
    return Report(kind="experts", rows=sum(len(c.measured_s) for c in cells), errors=judged["errors"])


def read(tables: Path, *, seed: int, rows_per_cell: int = ROWS_PER_CELL) -> list[Cell]:
    """Reads the tables' rows as cells, at most ``rows_per_cell`` for a device, stack and format (drawn at random)."""
    import pandas as pd

    frames = []
    for path in sorted((tables / "data").glob("*/moe/*/*/moe_perf.parquet")):
        frame = pd.read_parquet(path, columns=["moe_dtype", "kernel_source", "latency", *KEY])
        frame["system"], frame["stack"] = path.parts[-5], path.parts[-3]
        frame["order"] = f"{path.parts[-2]}"
        frames.append(frame[frame.moe_dtype.isin(FORMATS) & (frame.latency > 0)])
    rows = served(pd.concat(frames, ignore_index=True))
    versions = sorted(set(rows["order"]), key=training.version)
    rows["version"] = rows["order"].map({name: index for index, name in enumerate(versions)})
    key = ["system", "stack", "moe_dtype", *KEY]
    rows = rows.sort_values(["version", "latency"], ascending=[False, True]).drop_duplicates(key)
    random = np.random.default_rng(seed)
    rows = rows.iloc[random.permutation(len(rows))].groupby(["system", "stack", "moe_dtype"]).head(rows_per_cell)
    rows["gated"] = [pair not in NOT_GATED for pair in zip(rows.hidden_size, rows.inter_size, strict=True)]
    parts = rows.groupby(["system", "stack", "moe_dtype", "gated", "distribution"], sort=True)
    return [_cell(name, part) for name, part in parts]


def served(rows: Any) -> Any:
    """Returns the rows of a table without kernels that were timed differently from how they are served.

    A kernel with narrower weights reads fewer bytes and multiplies no slower than one with 16 bits. If a kernel (of a
    device, stack, version and format) takes more than ``UNTUNED`` times as long as bf16 in the same version, in the
    median of their common calls, it was not timed as it is served. aiconfigurator-core 0.12.0 has four such kernels:
    vLLM 0.24's FP8 on H100 and H200 (FlashInfer's CUTLASS with its default tactic; vLLM picks the fastest tactic when
    it starts, but the tool that timed the kernels does not), and vLLM 0.19's 4-bit integers on H200 and B200 (the
    generic Triton kernel, while vLLM serves with Marlin).

    Args:
        rows: Frame with the columns ``system``, ``stack``, ``order`` (the version), ``moe_dtype``, ``kernel_source``,
            ``latency`` and those of ``KEY``.
    """
    version = ["system", "stack", "order"]
    is_wide = rows.moe_dtype == "bfloat16"
    wide = rows[is_wide].groupby([*version, *KEY]).latency.min().rename("wide")
    slower = rows.latency / rows.join(wide, on=[*version, *KEY]).wide  # unknown if bf16 was not timed
    kernel = [rows[name] for name in (*version, "moe_dtype", "kernel_source")]
    return rows[is_wide | ~(slower.groupby(kernel).transform("median") > UNTUNED)]


def _cell(name: Any, part: Any) -> Cell:
    system, stack, dtype, gated, routing = name
    device = datasheet.load(system)
    weights, activations = FORMATS[dtype]
    if activations == "fp8" and "fp8" not in device.peak_flops_per_s:
        activations = "bf16"  # devices without fp8 widen the weights
    size = {name: part[name].to_numpy(dtype=np.int64) for name in KEY if name != "distribution"}
    op = ExpertsOp(
        tokens=size["num_tokens"],
        d_model=size["hidden_size"],
        width=np.maximum(size["inter_size"] // size["moe_tp_size"], 1),
        experts=size["num_experts"],
        local_experts=np.maximum(size["num_experts"] // size["moe_ep_size"], 1),
        topk=size["topk"],
        gated=gated,
        weights=weights,
        activations=activations,
    )
    site = size["hidden_size"] * 1_000_003 + size["inter_size"] * 10_007 + size["topk"] * 101 + size["num_experts"]
    return Cell(
        device=device,
        stack=stack,
        kind=experts.format_class(weights, activations),
        routing=routing,
        op=op,
        numbers=experts.grouped(op, device, routing=routing),
        measured_s=part.latency.to_numpy(dtype=np.float64) / 1e3,
        site=site.astype(np.float64),
    )


def _held(cell: Cell, fold: str) -> bool:
    kind, _, name = fold.partition(":")
    return (kind == "device" and cell.device.name == name) or (kind == "family" and cell.device.family == name)


def _fit_fold(cells: list[Cell], facts: dict[str, Any], *, seed: int) -> tuple[dict[str, Any], Network]:
    constants = {
        f"{stack}.{kind}": _constants([c for c in cells if c.stack == stack and c.kind == kind])
        for stack in STACKS
        for kind in experts.FORMATS
        if any(c.stack == stack and c.kind == kind for c in cells)
    }
    inputs, targets = [], []
    for cell in cells:
        base = _base(cell, constants)
        inputs.append(_inputs(cell, base, facts))
        targets.append(np.clip(np.log(cell.measured_s / base), -BOUND, BOUND))
    width = inputs[0].shape[1]
    network = training.train(
        np.concatenate(inputs),
        np.concatenate(targets),
        identity=slice(width - len(facts["devices"]), width),
        bound=BOUND,
        seed=seed,
        members=MEMBERS,
    )
    return constants, network


def _constants(cells: list[Cell]) -> dict[str, float]:
    """Fits shares of peak rates and number of launches by least mean |log error|; all devices have equal weight."""
    from scipy.optimize import minimize

    power = experts.DEFAULTS["power"]
    chosen = [slice(None, None, max(1, len(c.measured_s) // 300)) for c in cells]
    padded = np.concatenate([c.numbers.padded_s[s] for c, s in zip(cells, chosen, strict=True)])
    memory = np.concatenate([c.numbers.memory_s[s] for c, s in zip(cells, chosen, strict=True)])
    measured = np.concatenate([c.measured_s[s] for c, s in zip(cells, chosen, strict=True)])
    taken = [len(c.measured_s[s]) for c, s in zip(cells, chosen, strict=True)]
    launch = np.repeat([launch_s(c.device) for c in cells], taken)
    names, which = np.unique(np.repeat([c.device.name for c in cells], taken), return_inverse=True)
    weights = 1 / np.bincount(which, minlength=len(names))[which]

    def loss(logs: Float64Array) -> float:
        compute, share, kernels = np.exp(np.clip(logs, (-5, -3, -2), (0, 0, 4)))
        predicted = kernels * launch + ((padded / compute) ** power + (memory / share) ** power) ** (1 / power)
        return float(np.average(np.abs(np.log(measured / predicted)), weights=weights))

    start = np.log([experts.DEFAULTS["compute"], experts.DEFAULTS["memory"], experts.DEFAULTS["kernels"]])
    best = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 150, "xatol": 0.01, "fatol": 1e-4})
    compute, share, kernels = np.exp(np.clip(best.x, (-5, -3, -2), (0, 0, 4)))
    return {
        "compute": round(float(compute), 4),
        "memory": round(float(share), 4),
        "kernels": round(float(kernels), 3),
        "power": power,
    }


def _base(cell: Cell, constants: dict[str, Any]) -> Float64Array:
    found = constants.get(f"{cell.stack}.{cell.kind}") or constants.get(f"vllm.{cell.kind}") or experts.DEFAULTS
    return experts.base_s(cell.numbers, found, launch_s(cell.device))


def _inputs(cell: Cell, base: Float64Array, facts: dict[str, Any], *, seen: bool = True) -> Float32Array:
    fitted = Fitted(facts=facts, networks={})
    return experts.features(
        cell.op, cell.device, cell.numbers, base, stack=cell.stack, routing=cell.routing, fitted=fitted, seen=seen
    )


def _judge(
    cells: list[Cell],
    facts: dict[str, Any],
    constants: dict[str, Any],
    networks: dict[str, Network],
    *,
    seed: int,
    progress: Progress,
) -> dict[str, Any]:
    """Returns errors and half-widths of the three situations, and the best ``reach`` (see ``kernels/bounded.py``)."""
    sites = np.unique(np.concatenate([c.site for c in cells]))
    held = set(np.random.default_rng(seed + 1).choice(sites, size=max(1, len(sites) // 5), replace=False))
    kept = [_part(c, np.array([s not in held for s in c.site])) for c in cells]
    left = [_part(c, np.array([s in held for s in c.site])) for c in cells]
    found, network = _fit_fold([c for c in kept if len(c.measured_s)], facts, seed=seed)
    progress("experts: fitted without some sites")
    seen = _answers([c for c in left if len(c.measured_s)], facts, lambda c: (found, network), None)

    def outside(kind: str, reach: float, chosen: Iterable[Cell]) -> Answers:
        def model(cell: Cell) -> tuple[dict[str, Any], Network]:
            return constants[_fold(kind, cell)], networks[_fold(kind, cell)]

        return _answers(list(chosen), facts, model, (kind, reach))

    def mean(answers: Answers) -> float:
        by: dict[str, list[Float64Array]] = {c.device.name: [] for c, _ in answers}
        for c, p in answers:
            by[c.device.name].append(np.abs(np.log(p / c.measured_s)))
        return float(np.mean([np.concatenate(v).mean() for v in by.values()]))

    reach = min(REACHES, key=lambda r: mean(outside("family", r, cells)))
    final = Fitted(facts={**facts, "reach": reach}, networks={})

    def sibling(device: datasheet.DeviceProfile) -> bool:
        return final.situation(device, f"device:{device.name}", hardware(device)) == "sibling"

    several = [cell for cell in cells if sibling(cell.device)]
    situations = {
        "seen": seen,
        "sibling": outside("device", reach, several),
        "unseen": outside("family", reach, cells),
    }
    table: dict[str, dict[str, float]] = {"all": {}, **{stack: {} for stack in STACKS}}
    report: dict[str, dict[str, float]] = {}
    for situation, answers in situations.items():
        for group in table:
            part = [(c, p) for c, p in answers if group in ("all", c.stack)]
            truth = np.concatenate([c.measured_s for c, _ in part])
            answer = np.concatenate([p for _, p in part])
            names = np.concatenate([np.full(len(p), c.device.name) for c, p in part])
            table[group][situation] = round(conformal(truth, answer, devices=names), 4)
            report[situation if group == "all" else f"{situation} {group}"] = errors(truth, answer)
        for name in sorted({c.device.name for c, _ in answers}):
            part = [(c, p) for c, p in answers if c.device.name == name]
            report[f"{situation} {name}"] = errors(
                np.concatenate([c.measured_s for c, _ in part]), np.concatenate([p for _, p in part])
            )
    return {"reach": reach, "log_halfwidth": table, "errors": report}


def _answers(cells: list[Cell], facts: dict[str, Any], choose: Any, unseen: tuple[str, float] | None) -> Answers:
    answers: Answers = []
    for cell in cells:
        constants, network = choose(cell)
        base = _base(cell, constants)
        correction = network(_inputs(cell, base, facts, seen=unseen is None))
        near = 1.0
        if unseen is not None:
            kind, reach = unseen
            stand_in = Fitted(facts={**facts, "reach": reach}, networks={})
            near = stand_in.nearness(hardware(cell.device), _fold(kind, cell))
        answers.append((cell, base * np.exp(correction * near)))
    return answers


def _fold(kind: str, cell: Cell) -> str:
    return f"{kind}:{cell.device.name if kind == 'device' else cell.device.family}"


def _part(cell: Cell, rows: Any) -> Cell:
    names = ("tokens", "d_model", "width", "experts", "local_experts", "topk")
    op = replace(cell.op, **{name: getattr(cell.op, name)[rows] for name in names})
    return replace(
        cell,
        op=op,
        numbers=experts.grouped(op, cell.device, routing=cell.routing),
        measured_s=cell.measured_s[rows],
        site=cell.site[rows],
    )

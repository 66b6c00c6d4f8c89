"""Fits ``kernels/collective.py`` to aiconfigurator-core's tables of NCCL, oneCCL and the runtimes' own all-reduces.

The tables give messages in elements, of 16 bits in the rows used here, and times in milliseconds. The runtimes'
all-reduces were timed as replays of a graph of kernels, as in decoding. Constants are fitted for each kind of link; a
network corrects the remaining errors, because protocols change with the size of the message, and hosts differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.errors import UnknownName
from chipwise.hardware import datasheet
from chipwise.model.ops.collective import CollectiveOp
from chipwise.predict.kernels import collective
from chipwise.predict.kernels.bounded import SHIPPED, Fitted, Network
from chipwise_fitting import bounded_training as training
from chipwise_fitting.report import Progress, Report, conformal, errors

NAMES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
LIBRARIES = ("nccl", "oneccl")
BOUND = 2.0  # of the logarithmic correction: hosts differ by a factor of seven
REACH = 1.5  # the same as for experts
EPOCHS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Rows of one device, collective and (for all-reduce) stack."""

    device: datasheet.DeviceProfile
    name: str  # its name in the table of constants: all_gather, all_reduce.vllm
    op: CollectiveOp
    measured_s: Float64Array


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes collective.json and .npz into ``out``."""
    cells = read(tables)
    devices = {cell.device.name: cell.device.family for cell in cells}
    facts: dict[str, Any] = {
        "tables": ["data/*/comm/*/*/nccl_perf.parquet", "…/oneccl_perf.parquet", "…/custom_allreduce_perf.parquet"],
        "devices": devices,
        "hardware": {c.device.name: collective.position(collective.link(c.device)).round(4).tolist() for c in cells},
        "bound": BOUND,
        "reach": REACH,
    }
    folds = [SHIPPED, *(f"device:{name}" for name in devices), *(f"family:{f}" for f in sorted(set(devices.values())))]
    constants, networks = {}, {}
    for fold in folds:
        kept = [cell for cell in cells if not _held(cell, fold)]
        constants[fold] = _table(kept)
        networks[fold] = _network(kept, constants[fold], facts, seed)
    progress(f"collective: {len(folds)} folds fitted")
    report: dict[str, dict[str, float]] = {}
    widths: dict[str, dict[str, float]] = {"device": {}, "host": {}, "all": {}}
    whole = Fitted(facts=facts, networks={})

    def sibling(device: datasheet.DeviceProfile) -> bool:
        place = collective.position(collective.link(device))
        return whole.situation(device, f"device:{device.name}", place) == "sibling"

    several = [cell for cell in cells if sibling(cell.device)]
    for situation, kind, chosen in (("seen", "", cells), ("sibling", "device", several), ("unseen", "family", cells)):
        pairs = _crossed(cells, facts, seed) if not kind else []
        for cell in chosen if kind else ():
            fold = f"{kind}:{cell.device.name if kind == 'device' else cell.device.family}"
            pairs.append((cell, cell.measured_s, _answer(cell, constants[fold], networks[fold], facts, fold)))
        for group in widths:
            part = [pair for pair in pairs if group in ("all", collective.link(pair[0].device).to)]
            if not part:
                continue
            truth, answer = (np.concatenate([pair[index] for pair in part]) for index in (1, 2))
            which = np.concatenate([np.full(len(pair[1]), pair[0].device.name) for pair in part])
            widths[group][situation] = round(conformal(truth, answer, devices=which), 4)
            report[situation if group == "all" else f"{situation}, link to {group}"] = errors(truth, answer)
        for device in sorted({pair[0].device.name for pair in pairs}):
            part = [pair for pair in pairs if pair[0].device.name == device]
            truth, answer = (np.concatenate([pair[index] for pair in part]) for index in (1, 2))
            report[f"{situation} {device}"] = errors(truth, answer)
    widths["host"].setdefault("sibling", widths["host"]["unseen"])  # no family has two devices behind a host
    facts |= {"constants": constants, "log_halfwidth": widths, "errors": report}
    training.write("collective", out, facts, networks)
    return Report(kind="collective", rows=sum(len(cell.measured_s) for cell in cells), errors=report)


def read(tables: Path) -> list[Cell]:
    """Reads each device and stack's newest version: for each call, the row of its fastest kernel."""
    import pandas as pd

    cells = []
    for folder in sorted((tables / "data").glob("*/comm/*")):
        table = "custom_allreduce" if folder.name in ("vllm", "sglang", "trtllm") else folder.name
        paths = sorted(folder.glob(f"*/{table}_perf.parquet"), key=lambda path: training.version(path.parent.name))
        if not paths:
            continue
        try:
            device = datasheet.load(folder.parts[-3].replace("_", "-"))
        except UnknownName:
            continue
        rows = pd.read_parquet(paths[-1])
        rows = rows[~rows["kernel_source"].str.contains("eager") & (rows["latency"] > 0)]
        if table in LIBRARIES:
            rows = rows[rows["nccl_dtype"] == "half"]
        rows = (
            rows[rows["op_name"].isin(NAMES)]
            .groupby(["op_name", "num_gpus", "message_size"])["latency"]
            .min()
            .reset_index()
        )
        for name, part in rows.groupby("op_name"):
            kind: Any = NAMES[str(name)]
            stack = "nccl" if table in LIBRARIES else folder.name
            op = CollectiveOp(
                collective=kind,
                payload_bytes=2 * part["message_size"].to_numpy(dtype=np.int64),
                devices=part["num_gpus"].to_numpy(dtype=np.int64),
            )
            cells.append(
                Cell(
                    device=device,
                    name=f"all_reduce.{stack}" if kind == "all_reduce" else kind,
                    op=op,
                    measured_s=part["latency"].to_numpy(dtype=np.float64) / 1e3,
                )
            )
    return cells


def _held(cell: Cell, fold: str) -> bool:
    kind, _, name = fold.partition(":")
    return (kind == "device" and cell.device.name == name) or (kind == "family" and cell.device.family == name)


def _table(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    table = {}
    for way in collective.DEFAULTS:
        for name in sorted({cell.name for cell in cells}):
            part = [cell for cell in cells if cell.name == name and collective.link(cell.device).to == way]
            if part:
                table[f"{way}.{name}"] = _constants(part)
    return table


def _network(cells: Sequence[Cell], table: dict[str, dict[str, float]], facts: dict[str, Any], seed: int) -> Network:
    bases = [_base(cell, table) for cell in cells]
    inputs = np.concatenate([_inputs(cell, base, facts) for cell, base in zip(cells, bases, strict=True)])
    logs = [np.log(cell.measured_s / base) for cell, base in zip(cells, bases, strict=True)]
    return training.train(
        inputs,
        np.clip(np.concatenate(logs), -BOUND, BOUND),
        identity=slice(inputs.shape[1] - len(facts["devices"]), inputs.shape[1]),
        bound=BOUND,
        seed=seed,
        epochs=EPOCHS,
        batch=512,
    )


def _constants(cells: Sequence[Cell]) -> dict[str, float]:
    """Fits constants of least mean |log error| over equally weighted devices, starting from the link's defaults."""
    from scipy.optimize import minimize

    start = collective.DEFAULTS[collective.link(cells[0].device).to]
    names = list(start)
    lower = np.log([1e-7, 1e-8, 0.01, 1e-7, 0.005, 1e-3])
    upper = np.log([2e-4, 5e-5, 1.2, 2e-4, 1.2, 3.0])

    def unpack(logs: Float64Array) -> dict[str, float]:
        return dict(zip(names, np.exp(np.clip(logs, lower, upper)).tolist(), strict=True))

    def loss(logs: Float64Array) -> float:
        constants = unpack(logs)
        misses = [np.abs(np.log(c.measured_s / _seconds(c, constants))).mean() for c in cells]
        return float(np.mean(misses))

    guess = np.log(np.maximum(list(start.values()), 1e-3 * np.array([1e-3, 1e-3, 1, 1e-3, 1, 100])))
    best = guess
    for _ in range(3):  # Nelder-Mead stalls, and a new simplex continues
        best = minimize(loss, best, method="Nelder-Mead", options={"maxiter": 400, "xatol": 1e-3, "fatol": 1e-5}).x
    return {name: float(f"{value:.4g}") for name, value in unpack(best).items()}


def _seconds(cell: Cell, constants: dict[str, float]) -> Float64Array:
    return collective.alpha_beta_s(cell.op, collective.link(cell.device).bandwidth.number, constants)


def _base(cell: Cell, table: dict[str, dict[str, float]]) -> Float64Array:
    way = collective.link(cell.device).to
    return _seconds(cell, table.get(f"{way}.{cell.name}") or collective.DEFAULTS[way])


def _inputs(cell: Cell, base: Float64Array, facts: dict[str, Any], *, seen: bool = True) -> Float32Array:
    fitted = Fitted(facts=facts, networks={})
    return collective.features(cell.op, cell.device, base, name=cell.name, fitted=fitted, seen=seen)


def _answer(
    cell: Cell, table: dict[str, dict[str, float]], network: Network, facts: dict[str, Any], fold: str
) -> Float64Array:
    """Predicts seconds with a fold's constants and network, which does not see the identity of a left-out device."""
    base = _base(cell, table)
    inputs = _inputs(cell, base, facts, seen=not _held(cell, fold))
    near = Fitted(facts=facts, networks={}).nearness(collective.position(collective.link(cell.device)), fold)
    answer: Float64Array = base * np.exp(network(inputs) * near)
    return answer


def _crossed(cells: Sequence[Cell], facts: dict[str, Any], seed: int) -> list[tuple[Cell, Float64Array, Float64Array]]:
    """Measured and predicted seconds of every row: a fit to half of the message sizes predicts the other half."""
    pairs = []
    for odd in (0, 1):
        tests = [np.unique(cell.op.payload_bytes, return_inverse=True)[1] % 2 == odd for cell in cells]
        kept = [_part(cell, ~test) for cell, test in zip(cells, tests, strict=True)]
        table = _table(kept)
        network = _network(kept, table, facts, seed)
        for cell, test in zip(cells, tests, strict=True):
            held = _part(cell, test)
            pairs.append((held, held.measured_s, _answer(held, table, network, facts, SHIPPED)))
    return pairs


def _part(cell: Cell, rows: Any) -> Cell:
    op = replace(
        cell.op, payload_bytes=np.asarray(cell.op.payload_bytes)[rows], devices=np.asarray(cell.op.devices)[rows]
    )
    return replace(cell, op=op, measured_s=cell.measured_s[rows])

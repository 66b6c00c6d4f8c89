"""Fits ``kernels/scan.py`` to the tables of gated delta layers and their convolutions in aiconfigurator-core.

Constants of each stack, kernel and phase are pooled over devices, and fitted again for each measured device; folds that
leave out a device or family only have constants pooled over the other devices. The tables' kernels ran again and again
on the same data, so the fit assumes warm caches. Errors are measured on every second batch and length, on left-out
devices and on left-out families.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import UnknownName
from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.scan import ScanOp
from chipwise.predict.kernels import scan
from chipwise.predict.kernels.bounded import SHIPPED, Fitted, hardware
from chipwise_fitting import bounded_training as training
from chipwise_fitting.report import Progress, Report, conformal, errors

REACH = 1.5  # the same as for experts
ROWS = 1200  # maximum number of rows of a cell, drawn at random


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Rows of one device, stack, kernel and phase."""

    device: datasheet.DeviceProfile
    name: str  # its name in the table of constants: vllm.gated_delta.prompt
    op: ScanOp | ConvOp
    measured_s: Float64Array


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes scan.json into ``out``."""
    cells = read(tables, seed=seed)
    devices = {cell.device.name: cell.device.family for cell in cells}
    sheets = {c.device.name: [round(float(v), 4) for v in hardware(c.device)] for c in cells}
    own = {f"{cell.device.name}.{cell.name}": _constants([cell]) for cell in cells}
    folds = [SHIPPED, *(f"device:{name}" for name in devices), *(f"family:{f}" for f in sorted(set(devices.values())))]
    constants = {}
    for fold in folds:
        kept = [cell for cell in cells if not _held(cell, fold)]
        names = sorted({cell.name for cell in kept})
        constants[fold] = {name: _constants([cell for cell in kept if cell.name == name]) for name in names}
    progress(f"scan: {len(folds)} folds fitted")
    report: dict[str, dict[str, float]] = {}
    widths: dict[str, dict[str, float]] = {"gated_delta": {}, "conv": {}, "all": {}}
    whole = Fitted(facts={"devices": devices, "hardware": sheets, "reach": REACH}, networks={})

    def sibling(device: datasheet.DeviceProfile) -> bool:
        return whole.situation(device, f"device:{device.name}", hardware(device)) == "sibling"

    several = [cell for cell in cells if sibling(cell.device)]
    for situation, kind, chosen in (("seen", "", cells), ("sibling", "device", several), ("unseen", "family", cells)):
        pairs = []
        for cell in chosen:
            held = cell.device.name if kind == "device" else cell.device.family
            table = constants[f"{kind}:{held}"] if kind else {}
            if not kind:
                pairs.append((cell, *_crossed(cell)))
            elif cell.name in table:
                pairs.append((cell, cell.measured_s, scan.base_s(cell.op, cell.device, table[cell.name])))
        for group in widths:
            part = [pair for pair in pairs if group == "all" or f".{group}." in pair[0].name]
            truth, answer = (np.concatenate([pair[index] for pair in part]) for index in (1, 2))
            which = np.concatenate([np.full(len(pair[1]), pair[0].device.name) for pair in part])
            widths[group][situation] = round(conformal(truth, answer, devices=which), 4)
            report[situation if group == "all" else f"{situation}, {group}"] = errors(truth, answer)
        for device in sorted({pair[0].device.name for pair in pairs}):
            part = [pair for pair in pairs if pair[0].device.name == device]
            truth, answer = (np.concatenate([pair[index] for pair in part]) for index in (1, 2))
            report[f"{situation} {device}"] = errors(truth, answer)
    facts = {
        "tables": "data/*/linear_attention/*/*/gdn_perf.parquet",
        "devices": devices,
        "hardware": sheets,
        "reach": REACH,
        "constants": constants,
        "own": own,
        "log_halfwidth": widths,
        "errors": report,
    }
    training.write("scan", out, facts, {})
    return Report(kind="scan", rows=sum(len(cell.measured_s) for cell in cells), errors=report)


def read(tables: Path, *, seed: int) -> list[Cell]:
    """Reads the rows of each device and stack's newest version, at most ``ROWS`` for each kernel and phase."""
    import pandas as pd

    cells = []
    for folder in sorted((tables / "data").glob("*/linear_attention/*")):
        paths = sorted(folder.glob("*/gdn_perf.parquet"), key=lambda path: training.version(path.parent.name))
        try:
            device = datasheet.load(folder.parts[-3])
        except UnknownName:
            continue
        if not paths:
            continue
        rows = pd.read_parquet(paths[-1])
        rows = rows[rows["latency"] > 0].assign(conv=rows["kernel_source"].str.contains("conv1d"))
        if folder.name == "trtllm":  # the times of its convolutions are a fraction of what moving their bytes takes
            rows = rows[~rows["conv"]]
        for (conv, step), part in rows.groupby(["conv", rows["phase"] == "generation"]):
            part = part.sample(min(ROWS, len(part)), random_state=seed)
            name = f"{folder.name}.{'conv' if conv else 'gated_delta'}.{'step' if step else 'prompt'}"
            measured = part["latency"].to_numpy(dtype=np.float64) / 1e3
            cells.append(Cell(device=device, name=name, op=_operator(part, bool(conv)), measured_s=measured))
    return cells


def _operator(rows: Any, conv: bool) -> ScanOp | ConvOp:
    size = {
        name: rows[name].to_numpy(dtype=np.int64)
        for name in ("batch_size", "seq_len", "d_conv", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
    }
    if conv:
        channels = 2 * size["num_k_heads"] * size["head_k_dim"] + size["num_v_heads"] * size["head_v_dim"]
        return ConvOp(
            batch=size["batch_size"],
            positions=size["seq_len"],
            in_channels=channels,
            out_channels=channels,
            taps=size["d_conv"],
            groups=channels,
            weights="bf16",
            activations="bf16",
        )
    return ScanOp(
        variant="gated_delta",
        batch=size["batch_size"],
        query_tokens=size["seq_len"],
        heads=size["num_v_heads"],
        key_size=size["head_k_dim"],
        value_size=size["head_v_dim"],
        groups=size["num_k_heads"],
        activations="bf16",
        state="fp32",
    )


def _held(cell: Cell, fold: str) -> bool:
    kind, _, name = fold.partition(":")
    return (kind == "device" and cell.device.name == name) or (kind == "family" and cell.device.family == name)


def _constants(cells: list[Cell]) -> dict[str, float]:
    """Returns the constants with the least mean |log error|; each device has equal weight."""
    from scipy.optimize import minimize

    start = scan.CONV_DEFAULTS if ".conv." in cells[0].name else scan.DEFAULTS
    lower = np.log([1e-3, 0.05, 0.2, 1e-12, 0.01, 1.0, 0.1])
    upper = np.log([1.0, 1.0, 40.0, 1e-4, 100.0, 12.0, 4.0])
    few = [_part(cell, slice(None, None, max(1, len(cell.measured_s) // 250))) for cell in cells]

    def unpack(logs: Float64Array) -> dict[str, float]:
        return dict(zip(start, np.exp(np.clip(logs, lower, upper)).tolist(), strict=True))

    def loss(logs: Float64Array) -> float:
        constants = unpack(logs)
        return float(
            np.mean([np.abs(np.log(c.measured_s / scan.base_s(c.op, c.device, constants))).mean() for c in few])
        )

    best = np.log(list(start.values()))
    for _ in range(2):  # Nelder-Mead stalls, and a new simplex continues
        best = minimize(loss, best, method="Nelder-Mead", options={"maxiter": 300, "xatol": 1e-3, "fatol": 1e-5}).x
    return {name: float(f"{value:.4g}") for name, value in unpack(best).items()}


def _crossed(cell: Cell) -> tuple[Float64Array, Float64Array]:
    """Measured and predicted seconds of every row: a fit to half of the sizes predicts the other half."""
    tokens = cell.op.positions if isinstance(cell.op, ConvOp) else cell.op.query_tokens
    odd = (np.log2(tokens).astype(int) + np.log2(cell.op.batch).astype(int)) % 2 == 1
    truth, answer = [], []
    for test in (odd, ~odd):
        if test.any() and not test.all():
            held, kept = _part(cell, test), _part(cell, ~test)
            truth.append(held.measured_s)
            answer.append(scan.base_s(held.op, held.device, _constants([kept])))
    return np.concatenate(truth), np.concatenate(answer)


def _part(cell: Cell, rows: Any) -> Cell:
    names = (
        ("batch", "positions", "in_channels", "out_channels", "taps", "groups")
        if isinstance(cell.op, ConvOp)
        else ("batch", "query_tokens", "heads", "key_size", "value_size", "groups")
    )
    op = replace(cell.op, **{name: getattr(cell.op, name)[rows] for name in names})
    return replace(cell, op=op, measured_s=cell.measured_s[rows])

"""Fits ``predict/kernels/power.py`` to the kernel tables that carry power (B200, vLLM 0.22.0: attention and experts).

Calls listed in ``data/heldout-power.txt``, with one fingerprint of sizes and formats on each line, are dropped first.
Errors are measured on a tenth of the remaining calls, and on left-out configurations (heads or experts).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.hardware.power_draw import floor_w
from chipwise.predict.kernels import power
from chipwise.predict.kernels.bounded import Network, hardware
from chipwise_fitting import bounded_training as training
from chipwise_fitting.power_rows import operators
from chipwise_fitting.report import Progress, Report, conformal, errors

TABLES = {
    "context": "attention/vllm/0.22.0/context_attention_perf.parquet",
    "decode": "attention/vllm/0.22.0/generation_attention_perf.parquet",
    "experts": "moe/vllm/0.22.0/moe_perf.parquet",
}
HELD_OUT = Path(__file__).parent / "data" / "heldout-power.txt"
KEYS = {
    "attention": "kernel_source batch_size isl num_heads num_key_value_heads head_dim kv_cache_dtype step window_size",
    "moe": "kernel_source moe_dtype num_tokens hidden_size inter_size topk num_experts moe_tp_size moe_ep_size "
    "distribution",
}
CONFIGURATION = {
    "attention": ["num_heads", "num_key_value_heads", "head_dim", "window_size"],
    "moe": ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"],
}
BOUND = 1.4
HIDDEN = 48
EPOCHS = 120


def fingerprints(calls: Any) -> list[str]:
    """Returns 12 hexadecimal digits of SHA-256 over operator, sizes and formats, for each row of a data frame."""
    found = []
    kinds = {op: KEYS["moe" if op == "moe" else "attention"].split() for op in set(calls["op"])}
    for row in calls.to_dict("records"):
        names = kinds[row["op"]]
        parts = [str(row["op"]), *(_text(row[name]) for name in names)]
        found.append(hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12])
    return found


def fit(tables: Path, out: Path, *, progress: Progress = print, seed: int = 0) -> Report:
    """Reads ``tables`` (the package's ``systems`` folder), writes power.json and power.npz into ``out``."""
    calls = {phase: read(tables, phase) for phase in TABLES}
    rows = {phase: _numbers(part) for phase, part in calls.items()}
    device = rows["context"]["device"]
    floor, limit = floor_w(device), device.board_power_w
    constants = {phase: _constants([part], floor, limit) for phase, part in rows.items()}
    constants["all"] = _constants(list(rows.values()), floor, limit)
    networks: dict[str, Network] = {}
    halfwidths: dict[str, dict[str, float]] = {}
    report: dict[str, dict[str, float]] = {}
    for phase, part in rows.items():
        random = np.random.default_rng(seed)
        test = random.random(len(part["power"])) < 0.1
        chosen = random.choice(
            np.unique(part["configuration"]), size=len(np.unique(part["configuration"])) // 6, replace=False
        )
        away = np.isin(part["configuration"], chosen)
        base = power.base_w(part["compute"], part["memory"], floor, limit, constants[phase])
        for name, held in (("seen", test), ("seen, whole configurations left out", away)):
            network = _network(part, base, ~held, seed)
            answer = np.clip(base[held] * np.exp(network(part["inputs"][held])), floor, limit)
            report[f"{phase}, {name}"] = errors(part["power"][held], answer)
            halfwidths.setdefault(phase, {})["seen"] = round(conformal(part["power"][held], answer), 4)
            progress(f"power: {phase}, {name}: {report[f'{phase}, {name}']['mape']:.1f} %")
        networks[phase] = _network(part, base, np.ones(len(base), dtype=bool), seed)
        others = _constants([other for name, other in rows.items() if name != phase], floor, limit)
        plain = power.base_w(part["compute"], part["memory"], floor, limit, others)
        report[f"{phase}, formula fitted to the other kinds"] = errors(part["power"], plain)
        halfwidths[phase]["unseen"] = round(conformal(part["power"], plain), 4)
    unseen = max(width["unseen"] for width in halfwidths.values())
    halfwidths["all"] = {"seen": unseen, "unseen": unseen}
    facts = {
        "tables": [f"data/b200_sxm/{name}" for name in TABLES.values()],
        "devices": {device.name: device.family},
        "hardware": {device.name: [round(float(v), 4) for v in hardware(device)]},
        "bound": BOUND,
        "constants": constants,
        "log_halfwidth": halfwidths,
        "errors": report,
    }
    training.write("power", out, facts, networks)
    return Report(kind="power", rows=sum(len(part["power"]) for part in rows.values()), errors=report)


def read(tables: Path, phase: str) -> Any:
    """Reads one table's rows that state power and are not held out; adds the columns of ``power_rows.py``."""
    import pandas as pd

    frame = pd.read_parquet(tables / "data" / "b200_sxm" / TABLES[phase])
    frame = frame[(frame["power"] > 0) & (frame["latency"] > 0)].reset_index(drop=True)
    frame = frame.assign(op=frame["op_name"], device="b200-sxm", latency_s=frame["latency"] / 1e3)
    held = set(HELD_OUT.read_text(encoding="utf-8").split())
    return frame[[mark not in held for mark in fingerprints(frame)]].reset_index(drop=True)


def _numbers(calls: Any) -> dict[str, Any]:
    """Returns shares of peak rates, network inputs and watts, in the order of the rows."""
    size = len(calls)
    kind = "moe" if calls["op"].iloc[0] == "moe" else "attention"
    numbers: dict[str, Any] = {"compute": np.zeros(size), "memory": np.zeros(size), "power": calls["power"].to_numpy()}
    numbers["configuration"] = calls.groupby(CONFIGURATION[kind]).ngroup().to_numpy()
    latency = calls["latency_s"].to_numpy(dtype=np.float64)
    for index, op, device, routing in operators(calls):
        compute, memory = power.utilisation(op, device, latency[index], routing=routing)
        inputs = power.features(op, compute, memory, latency[index], routing=routing)
        if "inputs" not in numbers:
            numbers |= {"inputs": np.zeros((size, inputs.shape[1]), dtype=np.float32), "device": device}
        numbers["compute"][index], numbers["memory"][index], numbers["inputs"][index] = compute, memory, inputs
    return numbers


def _constants(parts: list[dict[str, Any]], floor: float, limit: float) -> dict[str, float]:
    """Fits the formula's three constants: least mean |log error|, with equal weight for each kind of kernel."""
    from scipy.optimize import minimize

    few = [{name: part[name][::7] for name in ("compute", "memory", "power")} for part in parts]

    def miss(part: dict[str, Any], constants: dict[str, float]) -> float:
        answer = power.base_w(part["compute"], part["memory"], floor, limit, constants)
        return float(np.abs(np.log(part["power"] / answer)).mean())

    def loss(logs: Float64Array) -> float:
        constants = dict(zip(power.DEFAULTS, np.exp(logs), strict=True))
        return float(np.mean([miss(part, constants) for part in few]))

    best = minimize(loss, np.log(list(power.DEFAULTS.values())), method="Nelder-Mead", options={"maxiter": 300})
    return {name: round(float(value), 4) for name, value in zip(power.DEFAULTS, np.exp(best.x), strict=True)}


def _network(part: dict[str, Any], base: Float64Array, kept: Any, seed: int) -> Network:
    width = part["inputs"].shape[1]
    return training.train(
        part["inputs"][kept],
        np.clip(np.log(part["power"][kept] / base[kept]), -BOUND, BOUND),
        identity=slice(width, width),
        bound=BOUND,
        seed=seed,
        hidden=HIDDEN,
        epochs=EPOCHS,
    )


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, int | float | np.integer | np.floating) else str(value)

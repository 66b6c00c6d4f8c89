"""Fits the constants of continuous batching to served runs: least absolute relative error, held near what is expected.

At most ten numbers for all models, devices and formats. Each fold leaves a device or a family out, kernels included.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chipwise.core.errors import Unsupported
from chipwise.core.files import write_json
from chipwise.hardware import datasheet
from chipwise.serve.batching import STACKS, halfwidth_key
from chipwise.serve.estimate import grouped, price_groups
from chipwise.serve.runs import ServedRun, read_runs

Array = npt.NDArray[np.float64]
NAMES = (
    "kernel_scale",
    "experts_scale",
    "gap_s",
    *(f"host_s.{stack}" for stack in STACKS),
    "sequence_s",
    "prefill_share",
)
EXPECTED = (1.0, 1.0, 1e-6, 0.5e-3, 0.5e-3, 0.5e-3, 20e-6, 1.0)
TRUST = (0.05, 0.3, 0.5e-6, 0.3e-3, 0.3e-3, 0.3e-3, 20e-6, 0.1)
"""How far from the expected each constant may lie before the runs must pay for it: one standard deviation."""
EXPERTS = NAMES.index("experts_scale")
GAP_S = EXPECTED[NAMES.index("gap_s")]  # in prefill, where few kernels take all the time
RUN_WEIGHT = 0.02  # of a run against the expectation: thousands of runs are a few dozen independent settings
ERROR = 0.1  # of one run, one standard deviation
LEAST = 0.03  # errors below this weigh alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Runs as a linear problem: ``tpot = features @ constants + fixed``."""

    features: Array  # (runs, constants)
    fixed_s: Array
    mixture: npt.NDArray[np.bool_]  # whether the model has experts
    tpot_s: Array
    devices: tuple[str, ...]
    families: tuple[str, ...]


def design_of(runs: Sequence[ServedRun], *, fold: str | None) -> Design:
    """The runs' kernels priced (without ``fold``) and put into the features of the constants."""
    known = [run for run in runs if run.request is not None]
    groups, _ = grouped([run.request for run in known if run.request is not None])
    features, fixed, truth, devices, families = [], [], [], [], []
    mixture: list[bool] = []
    for group, times in zip(groups, price_groups(groups, fold=fold), strict=True):
        if isinstance(times, Unsupported):
            continue
        prefill, decode = times
        stack = group.setting.runtime.stack
        waits = np.maximum(group.in_flight / group.setting.plan.dp - 1, 0) / group.new_tokens
        rows = np.zeros((len(group.rows), len(NAMES)))
        rows[:, NAMES.index("kernel_scale")] = decode.busy_s("matmul", "attention")
        rows[:, EXPERTS] = decode.busy_s("experts")
        rows[:, NAMES.index("gap_s")] = decode.kernels
        rows[:, NAMES.index(f"host_s.{stack}")] = 1.0
        rows[:, NAMES.index("sequence_s")] = group.replica_batch * group.setting.runtime.python
        prefill_s = prefill.busy_s("matmul", "attention", "experts", "other") + prefill.class_s("collective")
        rows[:, NAMES.index("prefill_share")] = waits * (prefill_s + GAP_S * prefill.kernels)
        features.append(rows)
        fixed.append(decode.class_s("collective") + decode.busy_s("other"))
        mixture += [bool(rows[:, EXPERTS].any())] * len(group.rows)
        truth.append([known[i].tpot_s for i in group.rows])
        devices += [group.device.name] * len(group.rows)
        families += [group.device.family] * len(group.rows)
    return Design(
        features=np.concatenate(features),
        fixed_s=np.concatenate(fixed),
        mixture=np.array(mixture),
        tpot_s=np.concatenate(truth),
        devices=tuple(devices),
        families=tuple(families),
    )


def solve(design: Design, kept: npt.NDArray[np.bool_]) -> Array:
    """Constants of the runs ``kept``: all but the experts' from dense models, then the experts' from mixtures."""
    found = np.asarray(EXPECTED)
    experts = np.arange(len(NAMES)) == EXPERTS
    for runs, free in ((kept & ~design.mixture, ~experts), (kept & design.mixture, experts)):
        if runs.any():
            found = _solve(design, runs, free, found)
    return found


def _solve(design: Design, runs: npt.NDArray[np.bool_], free: npt.NDArray[np.bool_], found: Array) -> Array:
    """Least absolute relative error over ``free`` constants, by re-weighted non-negative least squares."""
    from scipy.optimize import nnls

    rows = design.features[runs] / design.tpot_s[runs, None]
    target = 1 - design.fixed_s[runs] / design.tpot_s[runs] - rows[:, ~free] @ found[~free]
    trust, expected = np.asarray(TRUST)[free], np.asarray(EXPECTED)[free]
    weight = np.ones(len(target))
    for _ in range(30):
        root = np.sqrt(RUN_WEIGHT * weight) / ERROR
        stacked = np.vstack([rows[:, free] * root[:, None], np.diag(1 / trust)])
        part, _ = nnls(stacked * trust, np.concatenate([target * root, expected / trust]))
        part = part * trust
        weight = ERROR / np.maximum(np.abs(rows[:, free] @ part - target), LEAST)
    solved = found.copy()
    solved[free] = part
    return solved


def fit(source: Path, out: Path, *, progress: Callable[[str], None] = lambda text: None) -> dict[str, dict[str, float]]:
    """Fits every fold to the runs of ``source`` and writes ``out``; returns each fold's error on what it left out."""
    runs = read_runs(source)
    whole = design_of(runs, fold=None)
    folds = ["none"]
    folds += [f"device:{name}" for name in sorted(set(whole.devices))]
    folds += [f"family:{name}" for name in sorted(set(whole.families)) if len(set(whole.families)) > 1]
    held: dict[str, dict[str, object]] = {}
    errors: dict[str, dict[str, float]] = {}
    residuals: dict[str, list[Array]] = {}
    for fold in folds:
        progress(fold)
        design = whole if fold == "none" else design_of(runs, fold=fold)
        out_of_fit = left_out(design, fold)
        kept = ~out_of_fit
        found = solve(design, kept)
        predicted = design.features @ found + design.fixed_s
        scored = kept if fold == "none" else out_of_fit
        log_error = np.log(design.tpot_s[scored] / predicted[scored])
        relative = np.abs(predicted[scored] / design.tpot_s[scored] - 1)
        errors[fold] = {
            "runs": float(scored.sum()),
            "mape": float(relative.mean()),
            "median": float(np.median(relative)),
        }
        for mixture in (False, True):
            key = halfwidth_key(mixture=mixture, situation=_situation(fold, design))
            residuals.setdefault(key, []).append(np.abs(log_error[design.mixture[scored] == mixture]))
        held[fold] = _constants(found)
    widths = {name: float(np.quantile(np.concatenate(items), 0.9)) for name, items in residuals.items()}
    for fold in folds:
        held[fold]["log_halfwidth"] = widths
    provenance = f"{source.name}, {len(whole.tpot_s)} runs, {dt.date.today().isoformat()}, chipwise fit --kind serving"
    write_json(out, {"provenance": provenance, "folds": held})
    return errors


def left_out(design: Design, fold: str) -> npt.NDArray[np.bool_]:
    """Which runs a fold does not see."""
    kind, _, name = fold.partition(":")
    values = {"device": design.devices, "family": design.families}.get(kind, ())
    return np.array([value == name for value in values] or [False] * len(design.tpot_s))


def _situation(fold: str, design: Design) -> str:
    kind, _, name = fold.partition(":")
    if kind != "device":
        return "seen" if fold == "none" else "unseen"
    family = datasheet.load(name).family
    siblings = {d for d, f in zip(design.devices, design.families, strict=True) if f == family and d != name}
    return "sibling" if siblings else "unseen"


def _constants(found: Array) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, value in zip(NAMES, found, strict=True):
        head, _, stack = name.partition(".")
        rounded = float(f"{value:.4g}")
        if stack:
            table = values.setdefault(head, {})
            assert isinstance(table, dict)
            table[stack] = rounded
        else:
            values[head] = rounded
    return values

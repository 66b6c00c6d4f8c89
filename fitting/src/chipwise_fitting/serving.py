"""Fits the constants of continuous batching to served runs: least absolute relative error, with a prior on each.

There are eleven constants for all models, devices and formats. Each fold leaves a device or a family out of this fit
and of the kernel models; ``docs/notes/validation.md`` has the errors of the folds.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.files import write_json
from chipwise.core.statistics import nnls
from chipwise.errors import Unsupported
from chipwise.predict.served import intervals
from chipwise.predict.served.batching import rides_along
from chipwise.predict.served.groups import Group, Kernels, grouped, time_groups
from chipwise.predict.served.steps import PassTimes
from chipwise_fitting.half_widths import half_widths
from chipwise_fitting.served_runs import ServedRun, read_runs

STACKS = ("trtllm", "vllm", "sglang")
NAMES = (
    "kernel_scale",
    *(f"experts_scale.{stack}" for stack in STACKS),
    "gap_s",
    *(f"host_s.{stack}" for stack in STACKS),
    "sequence_s",
    "ranks_s",
    "prefill_share",
)
EXPECTED = (1.0, 1.0, 1.0, 1.0, 1e-6, 0.5e-3, 0.5e-3, 0.5e-3, 20e-6, 0.0, 1.0)
TRUST = (0.05, 0.3, 0.3, 0.3, 0.5e-6, 0.3e-3, 0.3e-3, 0.3e-3, 20e-6, 0.2e-3, 0.1)
"""Standard deviation of each constant's prior around its expected value."""
EXPERTS = np.array([name.startswith("experts_scale") for name in NAMES])
SHARE = NAMES.index("prefill_share")
RUN_WEIGHT = 0.03  # weight of a run against the prior: thousands of runs are about a hundred independent settings
ERROR = 0.1  # standard deviation of one run
LEAST = 0.03  # errors below this have equal weight
LEAST_SLOPE, LEAST_RUNS, LEAST_RANGE = 0.5, 5, 1.2  # see :func:`follows`; the range is a ratio of times
ROUNDS = 3  # of fitting the constants and computing the times of prompts from them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Seconds of passes as sums over the constants: ``rows @ constants + fixed_s``."""

    rows: Float64Array  # (runs, constants)
    fixed_s: Float64Array

    def seconds(self, found: Float64Array) -> Float64Array:
        """Returns the seconds of the passes with the constants ``found``."""
        result: Float64Array = self.rows @ found + self.fixed_s
        return result

    def __getitem__(self, runs: npt.NDArray[np.bool_]) -> Sum:
        return Sum(rows=self.rows[runs], fixed_s=self.fixed_s[runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Runs with predicted kernel times: ``tpot = step + share * waits * prompt``, where step and prompt are sums."""

    step: Sum
    prompt: Sum  # how long the prompt of one other request makes a request wait
    waits: Float64Array  # prompts of other requests for each token
    mixture: npt.NDArray[np.bool_]  # whether the model has experts
    tpot_s: Float64Array
    kernels: Float64Array  # half widths of the decode step's kernels, in logarithms
    sort: intervals.Names
    devices: intervals.Names
    families: intervals.Names
    follows: npt.NDArray[np.bool_]  # whether the setting's times follow its work; see :func:`follows`

    def __getitem__(self, runs: npt.NDArray[np.bool_]) -> Design:
        return Design(
            step=self.step[runs],
            prompt=self.prompt[runs],
            waits=self.waits[runs],
            mixture=self.mixture[runs],
            tpot_s=self.tpot_s[runs],
            kernels=self.kernels[runs],
            sort=self.sort[runs],
            devices=self.devices[runs],
            families=self.families[runs],
            follows=self.follows[runs],
        )

    def predicted_s(self, found: Float64Array) -> Float64Array:
        """Time per output token of each run with the constants ``found``."""
        return self.linear(found).seconds(found)

    def linear(self, found: Float64Array) -> Sum:
        """Returns the times as a sum over the constants; the times of prompts are computed with ``found`` and fixed."""
        rows = self.step.rows.copy()
        rows[:, SHARE] = self.waits * self.prompt.seconds(found)
        return replace(self.step, rows=rows)


def design_of(runs: Sequence[ServedRun], *, fold: str | None) -> Design:
    """Predicts the runs' kernels with models that leave ``fold`` out, and sums their seconds for each constant."""
    known = [run for run in runs if run.request is not None]
    groups, _ = grouped([run.request for run in known if run.request is not None])
    parts = [
        _part(group, kernels, np.array([known[i].tpot_s for i in group.rows]))
        for group, kernels in zip(groups, time_groups(groups, fold=fold), strict=True)
        if not isinstance(kernels, Unsupported)
    ]

    def joined(sums: Sequence[Sum]) -> Sum:
        return Sum(
            rows=np.concatenate([each.rows for each in sums]), fixed_s=np.concatenate([each.fixed_s for each in sums])
        )

    return Design(
        step=joined([part.step for part in parts]),
        prompt=joined([part.prompt for part in parts]),
        waits=np.concatenate([part.waits for part in parts]),
        mixture=np.concatenate([part.mixture for part in parts]),
        tpot_s=np.concatenate([part.tpot_s for part in parts]),
        kernels=np.concatenate([part.kernels for part in parts]),
        sort=np.concatenate([part.sort for part in parts]),
        devices=np.concatenate([part.devices for part in parts]),
        families=np.concatenate([part.families for part in parts]),
        follows=np.concatenate([part.follows for part in parts]),
    )


def _part(group: Group, kernels: Kernels, tpot_s: Float64Array) -> Design:
    """Returns the design of one group's runs; the expected values of the constants decide the sort of each run."""
    step = _sum(group, kernels.decode, sequences=group.replica_batch, host=True)
    prompt = _sum(group, kernels.prompts, sequences=0, host=not rides_along(group.setting.runtime))
    alone = Sum(rows=prompt.rows / group.together[:, None], fixed_s=prompt.fixed_s / group.together)
    count, expected = len(group.rows), np.asarray(EXPECTED)
    part = Design(
        step=step,
        prompt=alone,
        waits=np.maximum(group.in_flight / group.setting.plan.dp - 1, 0) / group.new_tokens,
        mixture=step.rows[:, EXPERTS].sum(axis=1) > 0,
        tpot_s=tpot_s,
        kernels=kernels.decode.log_halfwidth,
        sort=np.full(count, ""),
        devices=np.full(count, group.device.name),
        families=np.full(count, group.device.family),
        follows=np.ones(count, dtype=bool),
    )
    predicted_s = part.predicted_s(expected)
    return replace(
        part,
        sort=intervals.sorts(group.setting, group.device, 1 - step.seconds(expected) / predicted_s),
        follows=np.full(count, follows(tpot_s, predicted_s)),
    )


def follows(tpot_s: Float64Array, predicted_s: Float64Array) -> bool:
    """Whether the measured times of one setting's runs grow with their work.

    If measured times rise by less than half of what more requests and longer texts should cost (the slope of measured
    on predicted logarithms is below ``LEAST_SLOPE``), something that is not modelled determines them: a host that
    launches kernels one by one, requests that wait for memory, or cached prompts. If there are few runs, or all are
    alike, the slope is not known, and the result is True.
    """
    x, y = np.log(predicted_s), np.log(tpot_s)
    if len(x) < LEAST_RUNS or np.ptp(x) < math.log(LEAST_RANGE):
        return True
    return bool(np.polyfit(x, y, 1)[0] >= LEAST_SLOPE)


def _sum(group: Group, times: PassTimes, *, sequences: npt.ArrayLike, host: bool) -> Sum:
    runtime = group.setting.runtime
    rows = np.zeros((len(group.rows), len(NAMES)))
    rows[:, NAMES.index("kernel_scale")] = times.busy_s("matmul", "attention")
    rows[:, NAMES.index(f"experts_scale.{runtime.stack}")] = times.busy_s("experts")
    rows[:, NAMES.index("gap_s")] = times.kernels
    if host:
        rows[:, NAMES.index(f"host_s.{runtime.stack}")] = 1.0
    if host and runtime.python:
        rows[:, NAMES.index("sequence_s")] = sequences
        rows[:, NAMES.index("ranks_s")] = np.log2(group.setting.plan.tp)
    return Sum(rows=rows, fixed_s=times.class_s("collective") + times.busy_s("other"))


def solve(design: Design) -> Float64Array:
    """Fits the constants of experts to runs of mixtures, after all other constants were fitted to dense models."""
    found = np.asarray(EXPECTED)
    for _ in range(ROUNDS):
        times = design.linear(found)
        found = np.asarray(EXPECTED)
        for runs, free in ((~design.mixture, ~EXPERTS), (design.mixture, EXPERTS)):
            if runs.any():
                found = _solve(times[runs], design.tpot_s[runs], free, found)
    return found


def _solve(times: Sum, tpot_s: Float64Array, free: npt.NDArray[np.bool_], found: Float64Array) -> Float64Array:
    """Fits the ``free`` constants by least absolute relative error, as re-weighted non-negative least squares."""
    rows = times.rows / tpot_s[:, None]
    target = 1 - times.fixed_s / tpot_s - rows[:, ~free] @ found[~free]
    trust, expected = np.asarray(TRUST)[free], np.asarray(EXPECTED)[free]
    weight = np.ones(len(target))
    for _ in range(30):
        root = np.sqrt(RUN_WEIGHT * weight) / ERROR
        stacked = np.vstack([rows[:, free] * root[:, None], np.diag(1 / trust)])
        part = nnls(stacked * trust, np.concatenate([target * root, expected / trust]))
        part = part * trust
        weight = ERROR / np.maximum(np.abs(rows[:, free] @ part - target), LEAST)
    solved = found.copy()
    solved[free] = part
    return solved


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Errors of a fold, in logarithms, on the runs by which it is judged."""

    situation: str
    errors: Float64Array
    kernels: Float64Array
    sort: intervals.Names
    devices: intervals.Names
    families: intervals.Names


def fit(root: Path, out: Path, *, progress: Callable[[str], None] = lambda text: None) -> str:
    """Fits every fold to the sample of served runs in ``root``, writes ``serving.json`` to the folder ``out``.

    Returns each fold's errors on the runs that it left out.
    """
    source = root / "silicon_sample.csv"
    runs = read_runs(source)
    whole = design_of(runs, fold=None)
    folds = ["none"]
    folds += [f"device:{name}" for name in sorted(set(whole.devices))]
    folds += [f"family:{name}" for name in sorted(set(whole.families)) if len(set(whole.families)) > 1]
    held: dict[str, dict[str, object]] = {}
    errors: dict[str, dict[str, float]] = {}
    residuals: list[Residuals] = []
    for fold in folds:
        progress(fold)
        design = whole if fold == "none" else design_of(runs, fold=fold)
        out_of_fit = left_out(design.devices, design.families, fold)
        found = solve(design[~out_of_fit & design.follows])
        judged = design if fold == "none" else design[out_of_fit]
        predicted_s = judged.predicted_s(found)
        relative = np.abs(predicted_s / judged.tpot_s - 1)
        errors[fold] = {
            "runs": float(len(relative)),
            "mape": float(relative.mean()),
            "median": float(np.median(relative)),
        }
        residuals.append(
            Residuals(
                situation=_situation(fold, whole),
                errors=np.log(judged.tpot_s / predicted_s),
                kernels=judged.kernels,
                sort=judged.sort,
                devices=judged.devices,
                families=judged.families,
            )
        )
        held[fold] = _constants(found)
    for fold in folds:
        held[fold]["log_halfwidth"] = _half_widths(residuals, fold)
    provenance = f"{source.name}, {len(whole.tpot_s)} runs, {dt.date.today().isoformat()}, chipwise fit --kind serving"
    write_json(out / "serving.json", {"provenance": provenance, "folds": held})
    return f"serving: {errors}"


def _half_widths(residuals: Sequence[Residuals], fold: str) -> dict[str, float]:
    """Half-widths of every sort of run and situation, without the runs that ``fold`` leaves out."""
    found: dict[str, float] = {}
    for situation in intervals.SITUATIONS:
        told = [each for each in residuals if each.situation == situation]
        devices, families, *others = (
            np.concatenate([getattr(each, name) for each in told])
            for name in ("devices", "families", "errors", "sort", "kernels")
        )
        kept = ~left_out(devices, families, fold)
        errors, sort, kernels = (each[kept] for each in others)
        for name, width in half_widths(errors, sort, devices[kept], kernels).items():
            found[intervals.key(name, situation)] = float(f"{width:.4g}")
    return monotone(found)


def left_out(devices: intervals.Names, families: intervals.Names, fold: str) -> npt.NDArray[np.bool_]:
    """Marks the runs that a fold leaves out."""
    kind, _, name = fold.partition(":")
    values = {"device": devices, "family": families}.get(kind)
    return np.zeros(len(devices), dtype=bool) if values is None else np.asarray(values == name)


def _situation(fold: str, whole: Design) -> str:
    """Returns how well a fold knows the devices of the runs by which it is judged: seen, sibling or unseen."""
    kind, _, name = fold.partition(":")
    if kind != "device":
        return "seen" if fold == "none" else "unseen"
    family = whole.families[whole.devices == name][0]
    return "sibling" if np.any((whole.families == family) & (whole.devices != name)) else "unseen"


def _constants(found: Float64Array) -> dict[str, object]:
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


def monotone(table: Mapping[str, float]) -> dict[str, float]:
    """Raises half-widths so that a situation about which less is known never has a smaller one."""
    result = dict(table)
    for sort in (*intervals.DENSE, *intervals.MIXTURES, intervals.KERNELS):
        widest = 0.0
        for situation in intervals.SITUATIONS:
            widest = max(widest, result[intervals.key(sort, situation)])
            result[intervals.key(sort, situation)] = widest
    return result

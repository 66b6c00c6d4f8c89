"""Fits the terms of ``predict/kernels/local`` to measured runs of one user, and predicts such runs.

Every term is a deviation with a prior around zero: a class without runs keeps what all classes share, and a chip whose
architecture is new keeps what its class has. Errors are logarithms with heavy tails, since tables of many
hands hold rows that contradict the rest; no device counts for more than ``PER_DEVICE`` of its rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from chipwise.core.arrays import Float64Array
from chipwise.core.csvfile import write_rows
from chipwise.predict.kernels import local
from chipwise_fitting.edge_runs import Run, read_runs
from chipwise_fitting.score import Row

NOISE = 0.08  # of one run, as a logarithm
PER_DEVICE = 12.0
STEPS = 60
REFINED = 2  # steps from where the influence of the runs left out says that the fit goes
SHARE = 0.9
LEAST = 12  # misses that a half-width of a class's own rests on
START = {
    "bytes": 0.25,
    "few": math.log(0.5),
    "many": math.log(1.5),
    "kernel": math.log(4e-6),
    "pass": math.log(5e-5),
    "many:matrix": -0.3,
    "few:integers": -1.0,
}
PRIOR = {
    "bytes": (0.3, 0.2, 0.15),
    "few": (1.0, 0.7, 0.3),
    "many": (1.0, 0.5, 0.3),
    "kernel": (1.5, 1.0, 0.4),
    "kernel:work": (math.nan, 0.3, 0.2),
    "pass": (1.5, 1.0, 0.5),
    "bytes:bandwidth": (0.1, 0.2),
    "bytes:clock": (math.nan, 0.4),
    "many:matrix": (0.3, 0.15),
    "few:integers": (0.3,),
}
"""Standard deviations of a term of all (NaN: there is none), of a class or format, and of a pair or an architecture."""


@dataclass(frozen=True, slots=True)
class Design:
    """All kernels of all runs, with the terms of each as a sparse pattern."""

    names: tuple[str, ...]
    memory_s: Float64Array
    compute_s: Float64Array
    bytes: csr_array  # (kernels, names): what the term is multiplied by in the sum
    flops: csr_array
    kernel: csr_array
    of_run: csr_array  # (runs, kernels): how many of each kernel a run has
    measured: Float64Array  # (runs,) logarithms of seconds
    weight: Float64Array  # (runs,)


def design(runs: Sequence[Run]) -> Design:
    """The design of runs that have kernels."""
    every = [terms for run in runs if run.kernels for terms in run.kernels.terms]
    names = tuple(sorted({name for terms in every for name, _ in (*terms.bytes, *terms.flops, *terms.kernel)}))
    place = {name: i for i, name in enumerate(names)}

    def pattern(which: str) -> csr_array:
        sums = [getattr(terms, which) for terms in every]
        starts = np.cumsum([0, *map(len, sums)])
        columns = np.array([place[name] for each in sums for name, _ in each])
        times = np.array([times for each in sums for _, times in each])
        return csr_array((times, columns, starts), shape=(len(every), len(names)))

    kernels = [run.kernels for run in runs if run.kernels]
    devices = [run.device.name if run.device else "" for run in runs]
    seen = {name: devices.count(name) for name in set(devices)}
    starts = np.cumsum([0, *(len(each.counts) for each in kernels)])
    counts = np.concatenate([each.counts for each in kernels])
    return Design(
        names=names,
        of_run=csr_array((counts, np.arange(len(counts)), starts), shape=(len(runs), len(counts))),
        memory_s=np.concatenate([each.memory_s for each in kernels]),
        compute_s=np.concatenate([each.compute_s for each in kernels]),
        bytes=pattern("bytes"),
        flops=pattern("flops"),
        kernel=pattern("kernel"),
        measured=np.log([run.measured_s for run in runs]),
        weight=np.array([min(1.0, PER_DEVICE / seen[name]) for name in devices]),
    )


def start_and_prior(names: Sequence[str]) -> tuple[Float64Array, Float64Array]:
    """Where each term starts, and how far it is expected to be from there."""
    start = np.array([START.get(name, 0.0) for name in names])
    return start, np.array([PRIOR[name.split("|")[0]][min(name.count("|"), 2)] for name in names])


def predicted(held: Design, theta: Float64Array) -> tuple[Float64Array, csr_array]:
    """Logarithms of the seconds of every run, and their derivatives by the terms, (runs, names)."""
    sharp = local.SHARPNESS
    memory = held.memory_s * np.exp(held.bytes @ theta)
    compute = held.compute_s * np.exp(held.flops @ theta)
    kernel = np.exp(held.kernel @ theta)
    joined = local.joined(memory, compute)
    total = held.of_run @ (joined + kernel)
    below = np.maximum(joined, 1e-30) ** (sharp - 1)
    slope = (
        held.bytes.multiply((memory**sharp / below)[:, None])
        + held.flops.multiply((compute**sharp / below)[:, None])
        + held.kernel.multiply(kernel[:, None])
    )
    return np.log(total), csr_array((held.of_run @ csr_array(slope)).multiply((1 / total)[:, None]))


def fitted(runs: Sequence[Run], begin: dict[str, float] | None = None) -> dict[str, float]:
    """The terms that fit ``runs`` best under their priors.

    Args:
        runs: Runs that have kernels.
        begin: Where to look first, such as the fit to almost the same runs.
    """
    held = design(runs)
    start, _ = start_and_prior(held.names)
    theta = start if begin is None else np.array([begin.get(n, s) for n, s in zip(held.names, start, strict=True)])
    theta, _ = descend(held, held.weight, theta, steps=STEPS)
    return {name: float(value) for name, value in zip(held.names, theta, strict=True)}


def descend(
    held: Design, weights: Float64Array, theta: Float64Array, *, steps: int
) -> tuple[Float64Array, Float64Array]:
    """The terms that fit best, and their predictions, by damped Gauss-Newton steps on reweighted errors.

    Args:
        held: All runs.
        weights: Of each run, 0 where it is left out.
        theta: The terms to begin with.
        steps: How many steps at most.
    """
    start, prior = start_and_prior(held.names)
    damping, (found, slope) = 1e-3, predicted(held, theta)
    loss = _loss(found - held.measured, weights, (theta - start) / prior)
    for _ in range(steps):
        error = found - held.measured
        weight = weights / NOISE**2 / np.sqrt(1 + (error / NOISE) ** 2 * weights)
        normal = (slope.T @ slope.multiply(weight[:, None])).toarray() + np.diag(1 / prior**2)
        downhill = slope.T @ (weight * error) + (theta - start) / prior**2
        tried = theta - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
        after, tilt = predicted(held, tried)
        worth = _loss(after - held.measured, weights, (tried - start) / prior)
        if worth > loss:
            damping *= 10
            continue
        gained, theta, found, slope, loss, damping = loss - worth, tried, after, tilt, worth, damping / 3
        if gained < 1e-3:
            break
    return theta, found


def _loss(error: Float64Array, weight: Float64Array, deviation: Float64Array) -> float:
    """Twice the soft absolute error over the noise, and the squared deviations over the priors, halved."""
    return float(np.sum(np.sqrt(1 + weight * (error / NOISE) ** 2) - 1) + 0.5 * np.sum(deviation**2))


def seconds(runs: Sequence[Run], terms: dict[str, float]) -> Float64Array:
    """Logarithms of predicted seconds."""
    held = design(runs)
    return predicted(held, np.array([terms.get(name, 0.0) for name in held.names]))[0]


def _left_out(run: Run, leave_out: str) -> str:
    assert run.device is not None
    return {"device": run.device.name, "family": run.device.family, "vendor": run.device.vendor}[leave_out]


def misses(runs: Sequence[Run], leave_out: str, terms: dict[str, float]) -> Float64Array:
    """log(predicted / measured) of every run, by a fit without its device, family or vendor.

    Args:
        runs: Runs that have kernels.
        leave_out: ``device``, ``family`` or ``vendor``.
        terms: The fit to all, near which the others are looked for.
    """
    held = design(runs)
    groups = np.array([_left_out(run, leave_out) for run in runs])
    learnt = np.array([run.plausible for run in runs], float)
    start, _ = start_and_prior(held.names)
    near = Neighbourhood.of(held, np.array([terms.get(n, s) for n, s in zip(held.names, start, strict=True)]))
    missed = np.empty(len(runs))
    for name in sorted(set(groups)):
        out = groups == name
        weights = held.weight * learnt * ~out
        _, found = descend(held, weights, near.without(weights), steps=REFINED)
        missed[out] = (found - held.measured)[out]
    return missed


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A fit and its derivatives, from which fits without some of the runs start."""

    held: Design
    theta: Float64Array
    found: Float64Array
    slope: Float64Array  # (runs, names)

    @classmethod
    def of(cls, held: Design, theta: Float64Array) -> Neighbourhood:
        """That of the terms ``theta``."""
        found, slope = predicted(held, theta)
        return cls(held=held, theta=theta, found=found, slope=slope.toarray())

    def without(self, weights: Float64Array) -> Float64Array:
        """The terms that fit the runs that ``weights`` leave, as far as the derivatives tell."""
        start, prior = start_and_prior(self.held.names)
        theta = self.theta
        for _ in range(2):
            error = self.found + self.slope @ (theta - self.theta) - self.held.measured
            each = weights / NOISE**2 / np.sqrt(1 + (error / NOISE) ** 2 * weights)
            normal = (self.slope.T * each) @ self.slope + np.diag(1 / prior**2)
            theta = theta - np.linalg.solve(normal, self.slope.T @ (each * error) + (theta - start) / prior**2)
        return theta


def half_widths(runs: Sequence[Run], found: dict[str, Float64Array]) -> dict[str, float]:
    """Half-widths by ``PHASE|SITUATION|CLASS``: nine of ten plausible runs stayed within.

    Never less for a device of which less is known.
    """
    widths: dict[str, float] = {}
    for phase in ("decode", "prefill"):
        for kind in ("*", *sorted({run.interval_class for run in runs})):
            least = 0.0
            for situation in ("seen", "sibling", "unseen"):
                fair = [i for i, run in enumerate(runs) if run.phase == phase and run.plausible]
                chosen = [i for i in fair if kind in ("*", runs[i].interval_class)]
                if len(chosen) < LEAST and kind != "*":
                    continue
                values = np.abs(found[situation][chosen])
                level = min(1.0, SHARE * (1 + 1 / len(values)))
                least = max(least, float(np.quantile(values, level)))
                widths[f"{phase}|{situation}|{kind}"] = round(least, 4)
    return widths


def constants(runs: Sequence[Run]) -> dict[str, Any]:
    """What ships: terms, half-widths, and what the fit had seen."""
    terms = fitted([run for run in runs if run.plausible])
    measured = np.log([run.measured_s for run in runs])
    found = {
        "seen": seconds(runs, terms) - measured,
        "sibling": misses(runs, "device", terms),
        "unseen": misses(runs, "vendor", terms),
    }
    return {
        "terms": {name: round(value, 4) for name, value in terms.items() if abs(value) >= 5e-5},
        "halfwidths": half_widths(runs, found),
        "source": "public measurements of one user's runs; docs/notes/validation.md names the tables",
        "devices": sorted({f"{run.device.name}|{run.part}" for run in runs if run.device}),
        "classes": sorted({run.engine for run in runs}),
    }


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits to ``edge.csv.gz`` of ``tables`` and writes ``local.json``."""
    runs = [run for run in read_runs(table_in(tables)) if run.kernels]
    progress(f"{len(runs)} runs of {len({run.device.name for run in runs if run.device})} devices")
    found = constants(runs)
    (out / "local.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return f"local: {len(found['terms'])} terms"


def table_in(folder: Path) -> Path:
    """The table of a folder, or the file itself."""
    return folder / "edge.csv.gz" if folder.is_dir() else folder


COLUMN = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
"""The column of the predictions for each phase; ``low_`` and ``high_`` before it name the ends of its interval."""


def edge(truth: Path, out: Path, leave_out: str) -> list[Row]:
    """Predicts every run by a fit without what is left out, and writes the rates to ``out``, one line a row.

    Args:
        truth: ``edge.csv.gz``, or its folder.
        out: Where the predictions go.
        leave_out: ``none`` for the terms that ship, else ``device``, ``family`` or ``vendor``.
    """
    everything = read_runs(table_in(truth))
    runs = [run for run in everything if run.kernels]
    held = local.shipped()
    measured = np.log([run.measured_s for run in runs])
    if leave_out == "none":
        found = seconds(runs, dict(held.terms))
    else:
        found = misses(runs, leave_out, dict(held.terms)) + measured
    situation = {"none": "seen", "device": "sibling"}.get(leave_out, "unseen")
    predicted_s = dict(zip(map(id, runs), np.exp(found), strict=True))
    rows = [_row(run, predicted_s.get(id(run)), held, situation) for run in everything]
    lines: dict[str, dict[str, object]] = {}
    for run, row in zip(everything, rows, strict=True):
        if row.predicted is None or row.low is None or row.high is None:
            continue
        column = COLUMN[run.phase]
        rates = {column: row.predicted, f"low_{column}": row.low, f"high_{column}": row.high}
        lines.setdefault(run.row_id, {"row_id": run.row_id}).update(rates)
    columns = [f"{end}{column}" for column in COLUMN.values() for end in ("", "low_", "high_")]
    write_rows(out, list(lines.values()), ("row_id", *columns))
    return rows


def _row(run: Run, predicted_s: float | None, held: local.Constants, situation: str) -> Row:
    """A run's rate in tokens a second, measured and predicted."""
    rate = run.tokens / run.measured_s
    subset = f"{run.subset}, {run.phase}"
    if predicted_s is None:
        return Row(row_id=run.row_id, subset=subset, truth=rate, predicted=None, problem=run.problem)
    width = held.class_halfwidth(run.phase, situation, run.interval_class)
    middle = run.tokens / float(predicted_s)
    return Row(
        row_id=run.row_id,
        subset=subset,
        truth=rate,
        predicted=middle,
        low=middle * math.exp(-width),
        high=middle * math.exp(width),
    )

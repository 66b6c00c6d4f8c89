"""Fits the terms of ``predict/kernels/local`` to measured runs with one user.

Every term is a deviation with a prior around zero: a class without runs keeps the terms that all classes share, and a
chip of a new architecture keeps those of its class. Errors are logarithms with heavy tails, because tables by many
people contain rows that contradict the others. In each runtime, a device's CPU, GPU or NPU counts for at most
``PER_DEVICE`` rows.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from chipwise.core.arrays import Float64Array
from chipwise.predict.kernels import local
from chipwise_fitting.edge_runs import Run

Indices = npt.NDArray[np.int64]
NOISE = 0.08  # standard deviation of one run's logarithm
PER_DEVICE = 12.0
STEPS = 60
CONVERGED = 0.01  # a fit ends when a step reduces the loss by less
PARTS = 10  # number of parts in which pairs of chip and model are left out
REFINED = 4  # steps of a fit that leaves some runs out, starting from the fit to all runs
START = {
    "bytes": 0.25,
    "few": 0.6,
    "many": math.log(1.5),
    "kernel": math.log(4e-6),
    "pass": math.log(5e-5),
    "bytes|cpu": 0.25,
    "few|cpu": 2.0,
    "many|cpu": math.log(1.5),
    "kernel|cpu": math.log(4e-6),
    "pass|cpu": math.log(5e-5),
    "many:matrix": -0.5,
    "many:matrix|apple gpu": -0.4,  # Apple machine learning research, M5: prompts 3.3 to 4.1 times as fast as on M4
    "few:integers": -1.0,
    "many:product|cpu": -0.9,
    "few:product|cpu": -0.9,
    "many:cores|cpu": 0.3,
    "few:cores|cpu": 0.3,
    "kernel:cores|cpu": 0.8,
    "many:power|cpu": -0.4,
    "few:power|cpu": -0.3,
}
PRIOR = {
    "bytes": (0.3, 0.2, 0.15),
    "cache": (0.7, 0.5, 0.3),
    "few": (1.0, 0.7, 0.3),
    "many": (1.0, 0.5, 0.3),
    "kernel": (1.5, 1.0, 0.7),
    "kernel:work": (math.nan, 0.5, 0.4),
    "kernel:driver": (math.nan, math.nan, 0.3),
    "pass": (1.5, 1.0, 0.5),
    "bytes:unit": (math.nan, math.nan, 0.3),
    "bytes:bandwidth": (0.1, 0.4),
    "bytes:clock": (math.nan, 0.4),
    "many:matrix": (0.3, 0.15),
    "few:integers": (0.3,),
    "many:product": (math.nan, 0.1),
    "few:product": (math.nan, 0.1),
    "many:cores": (math.nan, 0.2),
    "few:cores": (math.nan, 0.2),
    "kernel:cores": (math.nan, 0.3),
    "many:power": (math.nan, 0.2),
    "few:power": (math.nan, 0.2),
}
"""Standard deviations of the priors by kind of term: for the term of all runs, for that of one class or format, and for
that of a class and format or of an architecture; NaN if there is no such term."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One of the three sums of terms that every kernel has; kernels with the same terms share a row of ``terms``."""

    terms: csr_array  # (patterns, names): the factor of each term
    of_kernel: Indices  # (kernels,): row of ``terms`` of each kernel

    def factors(self, theta: Float64Array) -> Float64Array:
        """Returns exp(sum) of every kernel."""
        return np.asarray(np.exp(self.terms @ theta)[self.of_kernel])

    def slope(self, run: Indices, weight: Float64Array, runs: int) -> csr_array:
        """Derivatives of all runs with respect to the terms, (runs, names); ``weight``: a kernel's part in its run."""
        shape = (runs, self.terms.shape[0])
        return csr_array(csr_array((weight, (run, self.of_kernel)), shape=shape) @ self.terms)


@dataclass(frozen=True, slots=True)
class Design:
    """All kernels of all runs, with each kernel's terms as a sparse pattern."""

    names: tuple[str, ...]
    memory_s: Float64Array
    compute_s: Float64Array
    bytes: Sums
    flops: Sums
    kernel: Sums
    run: Indices  # run of each kernel
    counts: Float64Array  # how often each kernel occurs in its run
    launches: Float64Array
    measured: Float64Array  # (runs,) logarithms of seconds
    weight: Float64Array  # (runs,) weights in the fit


def design(runs: Sequence[Run]) -> Design:
    """Builds the design of runs that have kernels."""
    kernels = [run.kernels for run in runs if run.kernels]
    every = [terms for each in kernels for terms in each.terms]
    names = tuple(sorted({name for terms in set(every) for name, _ in (*terms.bytes, *terms.flops, *terms.kernel)}))
    place = {name: i for i, name in enumerate(names)}

    def sums(which: str) -> Sums:
        patterns: dict[local.Sum, int] = {}
        of_kernel = [patterns.setdefault(getattr(terms, which), len(patterns)) for terms in every]
        starts = np.cumsum([0, *map(len, patterns)])
        columns = np.array([place[name] for each in patterns for name, _ in each])
        times = np.array([times for each in patterns for _, times in each])
        shape = (len(patterns), len(names))
        return Sums(terms=csr_array((times, columns, starts), shape=shape), of_kernel=np.array(of_kernel))

    sources = [f"{run.chip}|{run.part}|{run.stack}" for run in runs]
    seen = Counter(sources)
    return Design(
        names=names,
        run=np.repeat(np.arange(len(kernels)), [len(each.counts) for each in kernels]),
        counts=np.concatenate([each.counts for each in kernels]),
        launches=np.concatenate([each.launches for each in kernels]),
        memory_s=np.concatenate([each.memory_s for each in kernels]),
        compute_s=np.concatenate([each.compute_s for each in kernels]),
        bytes=sums("bytes"),
        flops=sums("flops"),
        kernel=sums("kernel"),
        measured=np.log([run.measured_s for run in runs]),
        weight=np.array([min(1.0, PER_DEVICE / seen[name]) for name in sources]),
    )


def start_and_prior(names: Sequence[str]) -> tuple[Float64Array, Float64Array]:
    """Returns each term's starting value and the standard deviation of its prior around that value."""
    start = np.array([START.get(name, 0.0) for name in names])
    return start, np.array([PRIOR[name.split("|")[0]][min(name.count("|"), 2)] for name in names])


def predicted(held: Design, theta: Float64Array, *, sloped: bool = True) -> tuple[Float64Array, Float64Array]:
    """Logarithms of every run's seconds and, if ``sloped``, derivatives with respect to the terms, (runs, names)."""
    sharp, runs = local.SHARPNESS, len(held.measured)
    memory = held.memory_s * held.bytes.factors(theta)
    compute = held.compute_s * held.flops.factors(theta)
    kernel = held.launches * held.kernel.factors(theta)
    joined = local.joined(memory, compute)
    total = np.bincount(held.run, held.counts * joined + kernel, runs)
    if not sloped:
        return np.log(total), np.empty((0, 0))
    below = held.counts / np.maximum(joined, 1e-30) ** (sharp - 1)
    slope = (
        held.bytes.slope(held.run, memory**sharp * below, runs)
        + held.flops.slope(held.run, compute**sharp * below, runs)
        + held.kernel.slope(held.run, kernel, runs)
    )
    return np.log(total), np.asarray(slope.toarray() / total[:, None])


def fitted(runs: Sequence[Run], begin: dict[str, float] | None = None) -> dict[str, float]:
    """The terms that fit ``runs`` best under their priors.

    Args:
        runs: Runs that have kernels.
        begin: Terms to start from, such as the fit to almost the same runs.
    """
    held = design(runs)
    start, _ = start_and_prior(held.names)
    theta = start if begin is None else np.array([begin.get(n, s) for n, s in zip(held.names, start, strict=True)])
    theta, _ = descend(held, held.weight, theta, steps=STEPS)
    return {name: float(value) for name, value in zip(held.names, theta, strict=True)}


def descend(
    held: Design, weights: Float64Array, theta: Float64Array, *, steps: int, damping: float = 1e-3
) -> tuple[Float64Array, Float64Array]:
    """The terms that fit best, and their predictions, by damped Gauss-Newton steps on reweighted errors.

    Args:
        held: The design of all runs.
        weights: Weight of each run, 0 for runs that are left out.
        theta: The terms to start from.
        steps: Maximum number of steps.
    """
    start, prior = start_and_prior(held.names)
    found, slope = predicted(held, theta)
    loss = _loss(found - held.measured, weights, (theta - start) / prior)
    for _ in range(steps):
        error = found - held.measured
        weight = weights / NOISE**2 / np.sqrt(1 + (error / NOISE) ** 2 * weights)
        root = slope * np.sqrt(weight)[:, None]
        normal = root.T @ root
        normal[np.diag_indices_from(normal)] = (np.diag(normal) + 1 / prior**2) * (1 + damping)
        downhill = slope.T @ (weight * error) + (theta - start) / prior**2
        tried = theta - cho_solve(cho_factor(normal, check_finite=False), downhill, check_finite=False)
        after, tilt = predicted(held, tried)
        worth = _loss(after - held.measured, weights, (tried - start) / prior)
        if worth > loss:
            damping *= 10
            continue
        gained, theta, found, slope, loss = loss - worth, tried, after, tilt, worth
        if gained < CONVERGED and damping < 1:
            break
        damping /= 3
    return theta, found


def _loss(error: Float64Array, weight: Float64Array, deviation: Float64Array) -> float:
    """Returns the soft absolute errors in units of the noise, plus half the squares of ``deviation``."""
    return float(np.sum(np.sqrt(1 + weight * (error / NOISE) ** 2) - 1) + 0.5 * np.sum(deviation**2))


def seconds(runs: Sequence[Run], terms: dict[str, float]) -> Float64Array:
    """Logarithms of predicted seconds."""
    held = design(runs)
    return predicted(held, np.array([terms.get(name, 0.0) for name in held.names]), sloped=False)[0]


def left_out_with(run: Run, leave_out: str) -> str:
    """Names the group that is left out to predict a run: device, family, vendor, or a part of all chip-model pairs."""
    assert run.device is not None
    part = f"part {zlib.crc32(f'{run.chip}|{run.model}'.encode()) % PARTS}"
    return {"device": run.chip, "family": run.device.family, "vendor": run.device.vendor, "model": part}[leave_out]


def misses(
    runs: Sequence[Run], leave_out: str, terms: dict[str, float], *, of: Sequence[Run] | None = None
) -> Float64Array:
    """log(predicted / measured) of every run, by a fit that leaves out its device, family or vendor.

    Args:
        runs: Runs that have kernels.
        leave_out: ``device``, ``family`` or ``vendor``; ``model`` leaves out a tenth of the pairs of chip and model.
        terms: The fit to all runs, from which the other fits start.
        of: Runs to predict instead of ``runs``: the same ones, but only with facts that a call of ``chipwise.estimate``
            states.
    """
    held = design(runs)
    asked = held if of is None else design(of)
    place = {name: i for i, name in enumerate(held.names)}
    known = np.array([place.get(name, -1) for name in asked.names])
    groups = np.array([left_out_with(run, leave_out) for run in runs])
    learnt = np.array([run.plausible for run in runs], float)
    start, _ = start_and_prior(held.names)
    theta = np.array([terms.get(n, s) for n, s in zip(held.names, start, strict=True)])
    theta, _ = descend(held, held.weight * learnt, theta, steps=REFINED)
    missed = np.empty(len(runs))
    for name in sorted(set(groups)):
        out = groups == name
        own, found = descend(held, held.weight * learnt * ~out, theta, steps=REFINED)
        if of is not None:
            found, _ = predicted(asked, np.where(known < 0, 0.0, own[known]), sloped=False)
        missed[out] = (found - held.measured)[out]
    return missed


def fits_without(
    runs: Sequence[Run], chips: Sequence[str], terms: dict[str, float]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields, for each of ``chips``, the terms fitted to the runs of all other chips, starting from ``terms``."""
    held = design(runs)
    learnt = np.array([run.plausible for run in runs], float)
    owner = np.array([run.chip for run in runs])
    start, _ = start_and_prior(held.names)
    theta = np.array([terms.get(n, s) for n, s in zip(held.names, start, strict=True)])
    for chip in chips:
        own, _ = descend(held, held.weight * learnt * (owner != chip), theta, steps=REFINED)
        yield chip, dict(zip(held.names, map(float, own), strict=True))

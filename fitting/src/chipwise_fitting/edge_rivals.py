"""Simple rules that predict runs with one user, for comparison; a run is predicted by a fit without the run's group.

The ideal time of a decode step is its bytes divided by the bandwidth, that of a prompt its FLOPs divided by the vector
units' rate. The predicted time is a factor times the ideal time, plus a constant per layer. Factor and constant are
fitted to each class of chips in the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from chipwise.core.arrays import Float64Array
from chipwise_fitting.edge_runs import Run

SOFT = 0.1  # the loss is linear in errors above this logarithm, quadratic in smaller ones


def by_efficiency(runs: Sequence[Run], groups: Sequence[str], *, layers: bool = True) -> Float64Array:
    """Predicts logarithms of seconds, with one factor and one constant per layer for each class of runs.

    Args:
        runs: Runs that have kernels.
        groups: Group of each run, which is left out: a run is predicted from runs of its class and phase in other
            groups.
        layers: Whether to fit a constant per layer.

    Returns:
        One value for each run, NaN if no other group has a run of the same phase.
    """
    found = np.full(len(runs), np.nan)
    left = np.array(groups)
    classes = np.array([f"{run.subset}|{run.phase}" for run in runs])
    fair = np.array([run.plausible for run in runs])
    work = np.array([run.kernels.ideal_s if run.kernels else np.nan for run in runs])
    depth = np.array([float(run.kernels.layers) if run.kernels else np.nan for run in runs])
    truth = np.log([run.measured_s for run in runs])
    for kind in sorted(set(classes)):
        inside = classes == kind
        for group in sorted(set(left[inside])):
            out = inside & (left == group)
            others = inside & (left != group) & fair
            if not others.any():
                others = (left != group) & fair & (np.char.endswith(classes, kind.rpartition("|")[2]))
            if not others.any():
                continue
            efficiency, a_layer = _constants(work[others], depth[others], truth[others], layers=layers)
            found[out] = np.log(work[out] * efficiency + depth[out] * a_layer)
    return found


def _constants(work: Float64Array, depth: Float64Array, truth: Float64Array, *, layers: bool) -> tuple[float, float]:
    """Fits the factor on the ideal time, and the seconds per layer."""
    first = float(np.median(truth - np.log(work)))
    if not layers:
        return float(np.exp(first)), 0.0

    def errors(theta: Float64Array) -> Float64Array:
        return np.asarray(np.log(work * np.exp(theta[0]) + depth * np.exp(theta[1])) - truth)

    start = np.array([first, np.log(np.median(np.exp(truth) / depth) / 10)])
    best = least_squares(errors, start, loss="soft_l1", f_scale=SOFT)
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))

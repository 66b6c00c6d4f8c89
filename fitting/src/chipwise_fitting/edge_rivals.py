"""Simple rules that predictions of one user's runs are compared with, fitted to the same runs with the device left out.

Decoding: bytes over the sheet's bandwidth and an efficiency, plus a constant a layer. Prompts: FLOPs over the rate of
the vector units and an efficiency, plus the same. Both constants are fitted to each class of chips of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from chipwise.core.arrays import Float64Array
from chipwise_fitting.edge_runs import Run

SOFT = 0.1  # logarithm from which an error counts by its size, not by its square


def by_efficiency(runs: Sequence[Run], groups: Sequence[str], *, layers: bool = True) -> Float64Array:
    """Logarithms of seconds by one efficiency, and a constant a layer, of the run's class.

    Args:
        runs: Runs that have kernels.
        groups: What is left out with each run: a run is predicted from those of its class and phase in other groups.
        layers: Whether there is a constant a layer.

    Returns:
        One value a run, NaN where no run of its phase is left to learn from.
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
    """What the ideal time is multiplied by, and seconds a layer, that fit best."""
    first = float(np.median(truth - np.log(work)))
    if not layers:
        return float(np.exp(first)), 0.0

    def errors(theta: Float64Array) -> Float64Array:
        return np.asarray(np.log(work * np.exp(theta[0]) + depth * np.exp(theta[1])) - truth)

    start = np.array([first, np.log(np.median(np.exp(truth) / depth) / 10)])
    best = least_squares(errors, start, loss="soft_l1", f_scale=SOFT)
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))

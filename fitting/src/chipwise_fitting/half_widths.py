"""Half-widths of the 90 % intervals of served runs, from the errors of fits that left out the run's device.

If a sort of run was measured on only one device, its half-width is multiplied by 1.5. If it was measured on none, it
gets twice the widest half-width of the same kind of model (dense, or mixture of experts).

References:
    Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World (split conformal prediction).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import conformal_half_width
from chipwise.predict.served.intervals import DENSE, KERNELS, MIXTURES, Names

INSIDE = 0.9
LEAST_RUNS = 30  # minimum number of runs of a sort on a device; fewer do not determine a 90 % quantile
ONE_DEVICE, NO_DEVICE = 1.5, 2.0


def half_widths(errors: Float64Array, sort: Names, devices: Names, kernels: Float64Array) -> Mapping[str, float]:
    """Returns the half-width of each sort of run.

    Args:
        errors: ln(measured / predicted) of each run, by fits that left out the run's device.
        sort: Sort of each run.
        devices: Device of each run.
        kernels: Half-widths of the kernels of each run's decode step.
    """
    found: dict[str, float] = {}
    for name in (*DENSE, *MIXTURES):
        told = [device for device in np.unique(devices) if np.sum((sort == name) & (devices == device)) >= LEAST_RUNS]
        if told:
            width = conformal_half_width(errors[(sort == name) & np.isin(devices, told)], INSIDE)
            found[name] = width * (ONE_DEVICE if len(told) == 1 else 1.0)
    for kind in (DENSE, MIXTURES):
        known = [found[name] for name in kind if name in found] or list(found.values())
        for name in kind:
            found.setdefault(name, NO_DEVICE * max(known))
    return {**found, KERNELS: float(np.max(kernels))}

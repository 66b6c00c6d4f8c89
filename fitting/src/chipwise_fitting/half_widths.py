"""Half-widths of the 90 % intervals of served runs, from the errors of fits that had not seen the run's device.

A sort of run that was measured on one other device alone gets half as much more; one that was measured on none gets
twice the widest of the same kind of model.

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
LEAST_RUNS = 30  # of a sort on a device: fewer do not determine a 90 % quantile
ONE_DEVICE, NO_DEVICE = 1.5, 2.0


def half_widths(errors: Float64Array, sort: Names, devices: Names, kernels: Float64Array) -> Mapping[str, float]:
    """The half width of each sort, from the runs of devices that are not asked about.

    Args:
        errors: Logarithms of measured over predicted, one a run.
        sort: Of each run.
        devices: Of each run.
        kernels: Half widths of the kernels of each run's decode step.
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

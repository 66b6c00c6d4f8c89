"""A chip by a few results of its own: terms of the law for that chip alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.npu_chips import Chip

NOISE = 0.25  # of a model that the law has not seen, as a logarithm
DEVIATIONS = {"": 0.5, "flops": 0.25, "bytes": 0.25, "calls": 0.25}
"""How far a chip is expected to be from its generation: as a whole, and in one kind of rate."""
FORMAT_DEVIATION = 0.25  # in one number format
STEPS = 8
RESULTS = 5
"""Measured models in one number format that a chip is taught by at least; intervals were checked with this many."""


def terms_by_results(chip: Chip, results: Sequence[FileResult], fitted: Mapping[str, float]) -> dict[str, float]:
    """Terms of ``chip`` that fit its results best, shrunk towards those of the law: a ridge regression on
    logarithms, linearised around each step's terms.

    Args:
        chip: The chip. If nobody published runs of it, ``fitted`` has the terms of its generation alone.
        results: Its results.
        fitted: The law's terms.

    Raises:
        SpecError: A result has amounts of work that this version does not know.
    """
    unknown = next((name for each in results for name in each.amounts if name not in npu_law.NOMINAL_S), None)
    if unknown is not None:
        raise SpecError(f"{unknown!r:.60} is no amount of work of this version; teach it again", field="files")
    own = f"chip|{chip.name}"
    wanted = {own: DEVIATIONS[""]} | {f"{own}|{unit}": sd for unit, sd in DEVIATIONS.items() if unit}
    wanted |= {f"{own}|{each.precision}": FORMAT_DEVIATION for each in results}
    names, deviation = list(wanted), np.array(list(wanted.values()))
    start: Float64Array = np.array([fitted.get(name, 0.0) for name in names])
    found = start
    logs = np.log([each.seconds for each in results])
    for _ in range(STEPS):
        terms = {**fitted, **dict(zip(names, found, strict=True))}
        slopes, predicted = np.zeros((len(results), len(names))), np.zeros(len(results))
        for row, each in enumerate(results):
            rates = npu_law.rates(terms, chip, each.runtime, each.precision)
            parts = {name: amount * rates[name] for name, amount in each.amounts.items()}
            whole = sum(parts.values())
            predicted[row] = np.log(whole)
            for name, seconds in parts.items():
                applied = npu_law.terms_of(name, chip, each.runtime, each.precision)
                slopes[row] += [seconds / whole * (term in applied) for term in names]
        normal = slopes.T @ slopes / NOISE**2 + np.diag(deviation**-2)
        downhill = slopes.T @ (logs - predicted + slopes @ found) / NOISE**2 + start / deviation**2
        found = np.asarray(np.linalg.solve(normal, downhill), np.float64)
    return {name: round(float(value), 4) for name, value in zip(names, found, strict=True)}

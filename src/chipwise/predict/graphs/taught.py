"""Corrects a law for one chip. A few models measured on the chip show how its rates differ from those of the law.

A chip with such measurements (``chipwise teach``) is called *taught*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.law import VIEW, GraphLaw, Speeds
from chipwise.predict.graphs.npu_chips import Chip

NOISE = 0.25  # standard deviation of the law's error for a model that it has not seen, as a logarithm
DEVIATIONS = {"": 0.5, "flops": 0.25, "bytes": 0.25, "calls": 0.25}
"""Expected standard deviations of ln(rate of a chip / rate of its generation or data sheet). The empty key is for a
deviation that all rates share. Each other key is a unit and is for a deviation that all rates in this unit share."""
FORMAT_DEVIATION = 0.25  # expected deviation of the rates in one number format from those in other formats
STEPS = 8
RESULTS = 5
"""Number of measured models in one number format from which the narrower intervals for taught chips apply."""
Parts = Sequence[tuple[float, Collection[str]]]
"""For each amount of work of a measured result: its seconds if all terms were 0, and the names of the terms."""


def terms_by_results(chip: Chip, results: Sequence[FileResult], fitted: Mapping[str, float]) -> dict[str, float]:
    """Fits a chip's own NPU terms to measured results; see :func:`fitted_terms`.

    Args:
        chip: The chip. If no runs of it were published, ``fitted`` has terms for its generation but not for the chip.
        results: Models that were measured on the chip.
        fitted: The law's terms.

    Raises:
        SpecError: A result contains an amount of work that this version of chipwise does not know.
    """
    unknown = next((name for each in results for name in each.amounts if name not in npu_law.NOMINAL_S), None)
    if unknown is not None:
        raise SpecError(
            f"{unknown!r:.60} is not a kind of work that this version knows; teach the chip again with: chipwise teach",
            field="files",
        )
    own = f"chip|{chip.name}"
    deviations = {own: DEVIATIONS[""]} | {f"{own}|{unit}": sd for unit, sd in DEVIATIONS.items() if unit}
    deviations |= {f"{own}|{each.precision}": FORMAT_DEVIATION for each in results}
    others = {name: term for name, term in fitted.items() if name not in deviations}
    parts = []
    for each in results:
        rates = npu_law.rates(others, chip, each.runtime, each.precision)
        applied = {name: npu_law.terms_of(name, chip, each.runtime, each.precision) for name in each.amounts}
        parts.append([(amount * rates[name], applied[name]) for name, amount in each.amounts.items()])
    return fitted_terms([each.seconds for each in results], parts, deviations, fitted)


def speeds_by_results(
    fitted: GraphLaw, results: Sequence[FileResult], sheet: Mapping[str, Speeds], precision: str
) -> Speeds:
    """Fits the speeds of a chip to measured results, for predictions of files in the format ``precision``.

    See :func:`fitted_terms`.

    Args:
        fitted: The law.
        results: Models that were measured on the chip.
        sheet: Maps ``precision`` and the number format of each result to the speeds on the chip's data sheet.
        precision: The number format of the file to predict.
    """
    parts = []
    for each in results:
        seconds = fitted.parts(each.amounts, sheet[each.precision])
        applied = {
            name: () if name.endswith(VIEW) else ("", name.rpartition(" ")[2], each.precision) for name in seconds
        }
        parts.append([(part_s, applied[name]) for name, part_s in seconds.items()])
    deviations = DEVIATIONS | {each.precision: FORMAT_DEVIATION for each in results}
    found = fitted_terms([each.seconds for each in results], parts, deviations, {})
    common = found[""] + found.get(precision, 0.0)
    flops, moved, calls = (float(np.exp(common + found[unit])) for unit in ("flops", "bytes", "calls"))
    own = sheet[precision]
    return Speeds(
        flops_per_s={name: rate / flops for name, rate in own.flops_per_s.items()},
        bytes_per_s=own.bytes_per_s / moved,
        call_s=own.call_s * calls,
    )


def fitted_terms(
    measured_s: Sequence[float], parts: Sequence[Parts], deviations: Mapping[str, float], start: Mapping[str, float]
) -> dict[str, float]:
    """The terms that fit measured seconds best, shrunk towards ``start``.

    This is a ridge regression on the logarithms of times. It is solved iteratively: each step linearises the predicted
    logarithms around the current terms.

    Args:
        measured_s: Seconds of each result.
        parts: The amounts of work of each result.
        deviations: Standard deviation that each term is expected to have around its value in ``start``.
        start: The terms that would apply without results; a term that is missing is 0.
    """
    names, deviation = list(deviations), np.array(list(deviations.values()))
    begun: Float64Array = np.array([start.get(name, 0.0) for name in names])
    at_zero = [np.array([seconds for seconds, _ in each]) for each in parts]
    applied = [np.array([[name in terms for name in names] for _, terms in each], float) for each in parts]
    logs, found = np.log(measured_s), begun
    for _ in range(STEPS):
        seconds = [zero * np.exp(which @ found) for zero, which in zip(at_zero, applied, strict=True)]
        predicted = np.log([each.sum() for each in seconds])
        slopes = np.array([each @ which / each.sum() for each, which in zip(seconds, applied, strict=True)])
        normal = slopes.T @ slopes / NOISE**2 + np.diag(deviation**-2)
        downhill = slopes.T @ (logs - predicted + slopes @ found) / NOISE**2 + begun / deviation**2
        found = np.asarray(np.linalg.solve(normal, downhill), np.float64)
    return {name: round(float(value), 4) for name, value in zip(names, found, strict=True)}


def models_in(precision: str, results: Iterable[FileResult]) -> int:
    """Number of different models in ``results`` that were measured in the number format ``precision``."""
    return len({each.model for each in results if each.precision == precision})


def taught_by(label: str, results: Sequence[FileResult], precision: str) -> str:
    """The end of a sentence that says to how many results of the profile ``label`` the chip's rates were fitted."""
    own = models_in(precision, results)
    return f", the chip to {len(results)} results of {label}, {own} of them in this format ({precision})"

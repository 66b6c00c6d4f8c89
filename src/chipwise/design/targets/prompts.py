"""P99 times and memory for prompts of varying length, derived from prompts of the P50 and of the P99 length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chipwise.core.arrays import Float64Array
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.targets.chance import Bounds, value_of
from chipwise.errors import MeasurementError
from chipwise.predict.served.prompt_spread import factor
from chipwise.predict.served.tails import TAILS

LONGEST = "longest"  # key in a measurement's environment: times at the P99 prompt length relative to the P50 length

KEPT = "kept"  # key in a measurement's environment: the share of the speed that remains under sustained load


def factors(
    found: Mapping[str, Float64Array | float], there: Mapping[str, Float64Array | float]
) -> dict[str, Float64Array]:
    """Maps each P99 metric to a factor: its time over all prompt lengths divided by its time at the P50 length.

    Args:
        found: P50 and P99 times of requests whose prompt has the P50 length.
        there: P50 times of requests whose prompt has the P99 length.
    """
    return {
        name: factor(found[name] / found[median], there[median] / found[median])
        for name, median in TAILS.items()
        if name in found and median in there
    }


def rows_over_prompts(found: Mapping[str, Float64Array], there: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """P99 times over all prompt lengths, and memory for prompts of the P99 length, of n designs, each (n,)."""
    by = factors(found, there)
    return {"peak_memory": there["peak_memory"]} | {name: found[name] * by[name] for name in by}


def bounds_over_prompts(known: Mapping[str, Bounds], there: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """P99 times over all prompt lengths, and memory for prompts of the P99 length, with their intervals."""
    here, longer = ({name: value_of(bounds) for name, bounds in each.items()} for each in (known, there))
    scaled = {name: scale(known[name], float(by)) for name, by in factors(here, longer).items()}
    return {"peak_memory": there["peak_memory"]} | scaled


def scale(bounds: Bounds, by: float) -> Bounds:
    """Multiplies a value and both ends of its interval by ``by``."""
    return tuple(None if end is None else by * end for end in bounds)


def with_longest(found: Measurement, longest: Measurement) -> Measurement:
    """Adds the results of ``longest`` (prompts of the P99 length) to ``found`` (prompts of the P50 length)."""
    facts: dict[str, float] = {"prompt_tokens": longest.workload.prompt_tokens}
    for name in TAILS.values():
        try:
            facts[name] = longest.corrected(name) / found.corrected(name)
        except MeasurementError:  # an encoder has no steps
            continue
    if longest.peak_memory_bytes is not None:
        facts["peak_memory"] = longest.peak_memory_bytes
    return replace(
        found,
        clean=found.clean and longest.clean,
        reasons=tuple(dict.fromkeys((*found.reasons, *longest.reasons))),
        environment={**found.environment, LONGEST: facts},
    )


def measured_over_prompts(
    measured: Mapping[str, float], bounds: Mapping[str, Bounds], facts: Mapping[str, float] | None
) -> tuple[dict[str, float], dict[str, Bounds]]:
    """Converts measured metrics and their intervals so that they refer to all prompt lengths.

    Args:
        measured: Metrics of requests with prompts of the P50 length.
        bounds: Both ends of the intervals of the measured percentiles.
        facts: The values that :func:`with_longest` added. None: prompts of the P99 length were not measured, so P99
            times and memory are unknown.
    """
    if facts is None:
        known = {name for name in measured if not (name in TAILS or name == "peak_memory")}
        return {name: measured[name] for name in known}, {name: bounds[name] for name in known if name in bounds}
    by = factors(
        measured, {name: facts[name] * measured[name] for name in TAILS.values() if name in facts and name in measured}
    )
    values = {name: float(by.get(name, 1.0)) * value for name, value in measured.items()}
    if "peak_memory" in facts:
        values["peak_memory"] = facts["peak_memory"]
    return values, {name: scale(each, float(by.get(name, 1.0))) for name, each in bounds.items()}

"""P99s and memory over prompts that vary, from requests with the P50 prompt and requests with the P99 prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chipwise.core.arrays import Float64Array
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.targets.chance import Bounds, value_of
from chipwise.errors import MeasurementError
from chipwise.predict.served.prompt_spread import factor
from chipwise.predict.served.tails import TAILS

LONGEST = "longest"  # in a measurement's environment: its times with the P99 prompt over those with the P50 prompt

KEPT = "kept"  # in a measurement's environment: the share of the speed that remains under long load


def factors(
    found: Mapping[str, Float64Array | float], there: Mapping[str, Float64Array | float]
) -> dict[str, Float64Array]:
    """Factors on P99s of requests with the P50 prompt, by name, so that they hold over the spread of prompts.

    Args:
        found: P50s and P99s of requests with the P50 prompt.
        there: P50s of requests with the P99 prompt.
    """
    return {
        name: factor(found[name] / found[median], there[median] / found[median])
        for name, median in TAILS.items()
        if name in found and median in there
    }


def rows_over_prompts(found: Mapping[str, Float64Array], there: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """P99s over the spread, and the memory of the longest prompt, of many designs, each (n,)."""
    by = factors(found, there)
    return {"peak_memory": there["peak_memory"]} | {name: found[name] * by[name] for name in by}


def bounds_over_prompts(known: Mapping[str, Bounds], there: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """P99s over the spread, and the memory of the longest prompt, with their intervals."""
    here, longer = ({name: value_of(bounds) for name, bounds in each.items()} for each in (known, there))
    scaled = {name: scale(known[name], float(by)) for name, by in factors(here, longer).items()}
    return {"peak_memory": there["peak_memory"]} | scaled


def scale(bounds: Bounds, by: float) -> Bounds:
    """A value and the ends of its interval, multiplied."""
    return tuple(None if end is None else by * end for end in bounds)


def with_longest(found: Measurement, longest: Measurement) -> Measurement:
    """A measurement with the P50 prompt that also holds what one with the P99 prompt found."""
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
    """Measured metrics and the ends of their intervals over the spread of prompts.

    Args:
        measured: Metrics of requests with the P50 prompt.
        bounds: Both ends of the intervals of its percentiles.
        facts: What :func:`with_longest` noted. None: the P99 prompt was not measured, so P99s and memory are unknown.
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

"""The hand-drawn contender of a run: found by the cost model, kept honest by measurement, chosen by short trainings.

A careful engineer tries more than one: for each vocabulary the largest Llama-proportioned design that is measured
within the limits gets the same first-rung training as every candidate, and the best of them the same full training as
the finalists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chipwise.pipeline.baseline import proportions
from chipwise.pipeline.costing import Costing
from chipwise.pipeline.halving import measured_within
from chipwise.pipeline.measuring import HEADROOM, within
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate, Trials
from chipwise.space.constraints import total_penalty
from chipwise.space.designs import design_of

MEASURED_AT_MOST = 4  # designs measured for one vocabulary before it is given up


def draw_baselines(
    trials: Trials, spec: RunSpec, costing: Costing, *, measure: Callable[[Candidate], bool]
) -> list[Candidate]:
    """The largest hand-drawn design of each vocabulary that was measured within the limits; begun ones are taken up."""
    kept: list[Candidate] = []
    for vocab_size in spec.space.vocab_size:
        drawn = [
            item
            for item in trials.all()
            if item.is_baseline and item.alive and item.design.arch.vocab_size == vocab_size
        ]
        good = next((item for item in drawn if measured_within(item, measure)), None)
        while good is None and len(_tried(trials, vocab_size)) < MEASURED_AT_MOST:
            done = [item.trial.notes["choices"] for item in _tried(trials, vocab_size)]
            fitting = (pair for pair in _largest_first(spec, costing, vocab_size) if pair[0] not in done)
            choices, promise = next(fitting, (None, None))
            if choices is None or promise is None:
                break
            item = trials[trials.add_baseline(choices, predicted=promise)]
            good = item if measured_within(item, measure) else None
        if good is not None:
            kept.append(good)
    return kept


def _tried(trials: Trials, vocab_size: int) -> list[Candidate]:
    return [item for item in trials.all() if item.is_baseline and item.design.arch.vocab_size == vocab_size]


def _largest_first(
    spec: RunSpec, costing: Costing, vocab_size: int
) -> list[tuple[Mapping[str, Any], dict[str, list[float]]]]:
    """Designs predicted within the limits, most parameters first; of equals the one predicted to be fastest.

    Those that hold the soft limits too come before all others: an engineer aims within them.

    Predictions are those of the moment: each measurement corrects the ones after it.
    """
    fitting: list[tuple[bool, int, float, int, Mapping[str, Any], dict[str, list[float]]]] = []
    for choices in proportions(spec.space):
        if choices["vocab_size"] != vocab_size:
            continue
        design = design_of(choices, spec=spec.space, name="baseline")
        promise = costing.promise(design)
        values = {metric: bounds[0] for metric, bounds in promise.items()}
        if within(spec.limits, values, headroom=HEADROOM):
            beyond = total_penalty(spec.limits, values) > 0
            fitting.append((beyond, -design.arch.parameters(), values["tpot_p50"], len(fitting), choices, promise))
    return [(choices, promise) for *_, choices, promise in sorted(fitting)]

"""The reference design of a run: the strongest conventional model for the same limits.

Its proportions are the task's (``training/tasks/``), such as those of Llama. Of the designs that the cost model
predicts within the limits, the largest that the training budget can still train is chosen. For each family (such as a
vocabulary) the largest one that is measured within the limits gets the same first training as every candidate, and the
best of them the same full training as the finalists.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from itertools import groupby

from chipwise.design.limits import total_penalty
from chipwise.design.phases.limits import HEADROOM, within
from chipwise.design.phases.measuring import Measurer
from chipwise.design.phases.other_devices import OtherDevices
from chipwise.design.phases.training_pace import slowness
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, Trials
from chipwise.design.targets.chance import Bounds, kept, values_of
from chipwise.design.targets.target import Target
from chipwise.model.arch.design import Design
from chipwise.model.space.designs import design_of

LEAST_TOKENS = 0.25  # least training tokens per parameter
TRAINED_FLOPS = (
    1.5e11  # FLOPs per CPU second: 951,424 parameters at 26,797 tokens/s, six FLOPs each (docs/notes/training.md)
)
MEASURED_AT_MOST = 4  # most designs measured for one vocabulary


def most_parameters(allowance: Allowance, *, slower: float = 1.0) -> float:
    """Most parameters that one final training can train: at least a quarter of a token for each.

    ``slower`` is how much longer this machine takes for a training than the one of ``TRAINED_FLOPS``.

    If limits are loose, the largest design within them would be undertrained. The speed of GPU trainings is not known
    in advance, so no design is left out there.
    """
    if allowance.unit == "tokens":
        return allowance.final / LEAST_TOKENS
    if allowance.unit == "cpu":
        return math.sqrt(TRAINED_FLOPS / slower * allowance.final / (6 * LEAST_TOKENS))
    return math.inf


def reference_designs(
    trials: Trials, spec: RunSpec, target: Target, *, measurer: Measurer, others: OtherDevices | None = None
) -> list[Candidate]:
    """The largest reference design of each family (such as a vocabulary) that is measured within the limits.

    Trials that have already started are continued.
    """
    asked = spec.task_settings
    families = dict.fromkeys(asked.family(choices) for choices in asked.references(spec.space))
    found = (largest_within(trials, spec, target, family, measurer=measurer, others=others) for family in families)
    return [item for item in found if item is not None]


def largest_within(
    trials: Trials,
    spec: RunSpec,
    target: Target,
    family: Hashable,
    *,
    measurer: Measurer,
    others: OtherDevices | None = None,
) -> Candidate | None:
    """The largest reference design of one family that is measured within the limits and can be trained well enough.

    It is returned with its current measurement, so that a resumed search continues in the same way.

    Designs that broke a limit in an earlier measurement (also as exported models at the end of a run) are skipped, and
    so are those that are predicted to break one on ``others``.
    """

    def tried() -> list[Candidate]:
        known = [item for item in trials.all() if item.is_reference and not item.notes.earlier]
        return [item for item in known if spec.task_settings.family(item.notes.choices) == family]

    alive = [item for item in tried() if item.alive]
    good = next((trials[item.number] for item in alive if measurer.within_limits(item)), None)
    while good is None and len(tried()) < MEASURED_AT_MOST:
        done = [dict(item.notes.choices) for item in tried()]
        fitting = (
            pair
            for pair in _largest_first(spec, target, family, slower=slowness(trials.study))
            if pair[0] not in done
            and (others is None or others.keeps_limits(design_of(pair[0], spec=spec.space, name="baseline")))
        )
        choices, predicted = next(fitting, (None, None))
        if choices is None or predicted is None:
            break
        item = _earlier(trials, choices) or trials[trials.add_reference(choices, predicted=predicted)]
        good = trials[item.number] if measurer.within_limits(item) else None
    return good


def _earlier(trials: Trials, choices: Mapping[str, object]) -> Candidate | None:
    """An earlier reference design with the same architecture, under other limits or budgets, to be used again."""
    for item in trials.all():
        if item.is_reference and item.alive and item.notes.earlier and dict(item.notes.choices) == dict(choices):
            trials.note(item.number, earlier=False)
            return trials[item.number]
    return None


def _largest_first(
    spec: RunSpec, target: Target, family: Hashable, *, slower: float = 1.0
) -> Iterator[tuple[Mapping[str, object], Mapping[str, Bounds]]]:
    """Designs predicted within the limits, most parameters first; the faster first among equal ones.

    Designs that also keep the soft limits come before all others; those too large for their training come last, the
    smallest first. Each measurement corrects later predictions. Without soft limits designs are predicted only as far
    as they are asked for, since a family may have a thousand.
    """
    most = most_parameters(spec.allowance, slower=slower)
    limits = (*spec.limits, *target.limits)

    def fits(predicted: Mapping[str, Bounds]) -> bool:
        if target.measures:
            return within(limits, values_of(predicted), headroom=HEADROOM)
        return kept(limits, predicted, {}, spec.confidence_share)

    def size_order(item: tuple[Mapping[str, object], Design]) -> tuple[bool, int]:
        size = item[1].arch.parameters()
        return size > most, size if size > most else -size

    asked = (one for one in spec.task_settings.references(spec.space) if spec.task_settings.family(one) == family)
    sized = sorted(((one, design_of(one, spec=spec.space, name="baseline")) for one in asked), key=size_order)
    soft = any(not limit.hard for limit in spec.limits)
    for _, group in groupby(sized, key=(lambda item: (False, 0)) if soft else size_order):
        fitting = []
        for number, (choices, design) in enumerate(group):
            predicted = target.predict(design)
            if fits(predicted):
                values = values_of(predicted)
                beyond, latency_s = total_penalty(spec.limits, values) > 0, values[spec.task_settings.latency_metric]
                fitting.append((beyond, *size_order((choices, design)), latency_s, number, choices, predicted))
        yield from ((choices, predicted) for *_, choices, predicted in sorted(fitting, key=lambda row: row[:5]))

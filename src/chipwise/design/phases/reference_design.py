"""The reference design of a run: the strongest conventional model for the same limits.

The task defines its proportions (``training/tasks/``), such as those of Llama. Designs too large for the training
budget are the last choice. In each family (for example, the designs with one vocabulary), the largest design that meets
the limits (as measured, if the target can measure) gets the same first training run as every candidate. The best of
these designs gets the same full training as the finalists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby

from chipwise.core.digest import digest
from chipwise.design.limits import MEASURED_METRICS, Constraint, total_penalty
from chipwise.design.phases.limits import HEADROOM, within
from chipwise.design.phases.measuring import Measurer
from chipwise.design.phases.other_devices import OtherDevices
from chipwise.design.phases.training_pace import known_pace
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
MEASURED_AT_MOST = 4  # most designs measured per family


def most_parameters(allowance: Allowance, *, slower: float = 1.0) -> float:
    """Largest number of parameters for which one final training run has at least 0.25 tokens per parameter.

    ``slower`` is how many times as long training takes on this machine as on the one where ``TRAINED_FLOPS`` was
    measured.

    Without this bound, the largest design within loose limits would be undertrained. The speed of training on GPUs is
    not known in advance, so for GPUs there is no bound.
    """
    if allowance.unit == "tokens":
        return allowance.final / LEAST_TOKENS
    if allowance.unit == "cpu":
        return math.sqrt(TRAINED_FLOPS / slower * allowance.final / (6 * LEAST_TOKENS))
    return math.inf


def reference_designs(
    trials: Trials,
    spec: RunSpec,
    target: Target,
    *,
    measurer: Measurer,
    others: OtherDevices | None = None,
    loss: Callable[[Mapping[str, object]], float] | None = None,
) -> list[Candidate]:
    """For each family (such as a vocabulary), the largest reference design that meets the limits.

    Existing trials of reference designs are used again. If ``loss``, the expected loss of a design's choices, is given,
    only the design with the lowest loss is sure to meet the limits as measured; the others may be predicted to.
    """
    asked = spec.task_settings
    found: dict[Hashable, Candidate] = {}

    def find(family: Hashable, *, measured: bool) -> None:
        item = largest_within(trials, spec, target, family, measurer=measurer, others=others, measured=measured)
        if item is None:
            found.pop(family, None)
        else:
            found[family] = item

    for family in dict.fromkeys(asked.family(choices) for choices in asked.references(spec.space)):
        find(family, measured=loss is None)
    sure = set[Hashable]()
    while loss is not None and found:
        best = min(found, key=lambda family: loss(found[family].notes.choices))
        if best in sure:
            break
        find(best, measured=True)
        sure.add(best)
    return list(found.values())


def largest_within(
    trials: Trials,
    spec: RunSpec,
    target: Target,
    family: Hashable,
    *,
    measurer: Measurer,
    others: OtherDevices | None = None,
    measured: bool = True,
) -> Candidate | None:
    """The largest reference design of one family that meets the limits; None if none is found.

    If the target can measure, measurements decide, unless ``measured`` is False: then a design that has not been
    measured counts if it is predicted to meet the limits. The design is returned with its current measurement, so that
    a resumed search continues in the same way. Designs are skipped if they exceeded a limit when they were measured
    earlier (also as exported models at the end of a run), or if they are predicted to exceed a limit on ``others``.
    """

    def tried() -> list[Candidate]:
        known = [item for item in trials.all() if item.is_reference and not item.notes.earlier]
        return [item for item in known if spec.task_settings.family(item.notes.choices) == family]

    def good_enough(item: Candidate) -> bool:
        return (not measured and item.notes.within is None) or measurer.within_limits(item)

    alive = [item for item in tried() if item.alive]
    good = next((trials[item.number] for item in alive if good_enough(item)), None)
    while good is None and len(tried()) < MEASURED_AT_MOST:
        done = [dict(item.notes.choices) for item in tried()]
        fitting = (
            pair
            for pair in _largest_first(spec, target, family, slower=known_pace(trials.study).slowness)
            if pair[0] not in done
            and (others is None or others.keeps_limits(design_of(pair[0], spec=spec.space, name="baseline")))
        )
        choices, predicted = next(fitting, (None, None))
        if choices is None or predicted is None:
            break
        item = _earlier(trials, choices) or trials[trials.add_reference(choices, predicted=predicted)]
        good = trials[item.number] if good_enough(item) else None
    return good


def _but_depth(choices: Mapping[str, object], design: Design) -> str:
    """A key that is equal for two designs if they differ only in the number of identical layers."""
    rest = {name: value for name, value in choices.items() if name not in ("depth", "layers")}
    layers = design.arch.layers
    return digest([rest, layers if len({*layers}) > 1 else layers[:1]])


def _earlier(trials: Trials, choices: Mapping[str, object]) -> Candidate | None:
    """Finds a reference design with these choices that was chosen under other limits or another budget.

    Marks it as current again. None if there is no such design.
    """
    for item in trials.all():
        if item.is_reference and item.alive and item.notes.earlier and dict(item.notes.choices) == dict(choices):
            trials.note(item.number, earlier=False)
            return trials[item.number]
    return None


def _largest_first(
    spec: RunSpec, target: Target, family: Hashable, *, slower: float = 1.0
) -> Iterator[tuple[Mapping[str, object], Mapping[str, Bounds]]]:
    """Designs that are predicted within the limits, most parameters first; among equally large ones, fastest first.

    Designs that also meet the soft limits come before all others. Designs that are too large for the training budget
    come last, smallest first. Each measurement corrects later predictions. Without soft limits, costs are predicted
    only for the designs that the caller requests, since a family may have a thousand designs. More layers of the same
    kind need more time and memory. So if the shallowest design exceeds a limit on time or memory, deeper designs with
    the same layers are left out.
    """
    most = most_parameters(spec.allowance, slower=slower)
    limits = (*spec.limits, *target.limits)
    growing = tuple(limit for limit in limits if limit.metric in MEASURED_METRICS and limit.op == "<=")

    def fits(predicted: Mapping[str, Bounds], limits: Sequence[Constraint] = limits) -> bool:
        if target.measures:
            return within(limits, values_of(predicted), headroom=HEADROOM)
        return kept(limits, predicted, {}, spec.confidence_share)

    def size_order(item: tuple[Mapping[str, object], Design]) -> tuple[bool, int]:
        size = item[1].arch.parameters()
        return size > most, size if size > most else -size

    asked = (one for one in spec.task_settings.references(spec.space) if spec.task_settings.family(one) == family)
    sized = sorted(((one, design_of(one, spec=spec.space, name="baseline")) for one in asked), key=size_order)
    shallowest: dict[str, Design] = {}
    for choices, design in sorted(sized, key=lambda pair: len(pair[1].arch.layers)):
        shallowest.setdefault(_but_depth(choices, design), design)
    possible = cache(lambda shape: fits(target.predict(shallowest[shape]), growing))
    soft = any(not limit.hard for limit in spec.limits)
    for _, group in groupby(sized, key=(lambda item: (False, 0)) if soft else size_order):
        fitting = []
        for number, (choices, design) in enumerate(group):
            if not possible(_but_depth(choices, design)):
                continue
            predicted = target.predict(design)
            if fits(predicted):
                values = values_of(predicted)
                beyond, latency_s = total_penalty(spec.limits, values) > 0, values[spec.task_settings.latency_metric]
                fitting.append((beyond, *size_order((choices, design)), latency_s, number, choices, predicted))
        yield from ((choices, predicted) for *_, choices, predicted in sorted(fitting, key=lambda row: row[:5]))

"""Resumes a run with other limits, budget or seed: keeps its results, and discards decisions that may change.

Finished training runs and measurements are kept. A training run as long as a rung of the new plan counts for that rung;
a shorter one is continued if its candidate is promoted. Existing measurements are compared with the new limits.
Reference designs are chosen again, because the largest one within the new limits may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from chipwise.core.files import build
from chipwise.core.record import Record
from chipwise.design.phases.halving import ETA, Rung
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.changes import AnySpec, Basis
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, TrainedRung, Trials
from chipwise.design.strategies.study import Study
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec

AS_LONG = 0.995  # share of a rung's budget that counts as complete, because training ends with a whole step
SHORTER = -1  # rung number of training shorter than the first rung of the plan
DECIDED = ("winner", "baseline", "centre", "finalists", "unmet", "test", "samples", "answer", "stopped")


def take_up(study: Study, trials: Trials, spec: RunSpec, before: AnySpec | None) -> None:
    """Discards the decisions in a study that other limits or another budget may change.

    Args:
        study: The run's study.
        trials: The trials of the run.
        spec: The run with its new settings.
        before: The previous spec, if it differs. Settings stored in the study have priority over it, because an earlier
            attempt to resume may have been interrupted.

    Raises:
        SpecError: A design was already trained for longer than one final training run of the new budget.
    """
    now, held = Basis.of(spec), study.memory.get("basis")
    was = build(Basis, held) if held is not None else Basis.of(before or spec)
    if was == now:
        if held is None:
            study.remember(basis=asdict(now))
        return
    items = trials.all()
    if was.budget != now.budget:
        _require_room(study, items, spec)
    if was.seed != now.seed:
        seeds = Record(study.memory).get("seeds", dict[str, int], {})
        study.remember(seeds={_training_of(item): was.seed for item in items} | seeds)
    if (was.limits, was.budget) != (now.limits, now.budget):
        for item in items:
            if item.alive:
                trials.note(item.number, within=None, promoted=0, earlier=item.is_reference)
        study.forget(*DECIDED, *(["plan", "rest"] if was.budget != now.budget else []))
    study.remember(basis=asdict(now))


def _training_of(item: Candidate) -> str:
    return item.design.arch.as_trained().digest


def stored_plan(study: Study) -> tuple[Rung, ...]:
    """The training plan stored in the study; empty if there is none yet."""
    return tuple(
        Rung(budget=budget, count=count) for budget, count in Record(study.memory).sequence("plan", tuple[float, int])
    )


def _require_room(study: Study, items: Sequence[Candidate], spec: RunSpec) -> None:
    """Refuses a final training run shorter than a finished one, because all finalists need equally long training."""
    plan, allowed = stored_plan(study), spec.allowance
    ends = [
        plan[rung.rung].budget if 0 <= rung.rung < len(plan) else allowed.charge(seconds=rung.cpu_s, tokens=rung.tokens)
        for item in items
        for rung in item.rungs
    ]
    longest = max(ends, default=0.0)
    if not allowed.alone and allowed.final < AS_LONG * longest:
        raise SpecError(
            f"one final training would be {allowed.show(allowed.final)}, but one design of this run has already "
            f"trained for {allowed.show(longest)}; give each final training at least {allowed.show(longest)}",
            field="budget.final",
        )


def charge_of(item: Candidate, allowance: Allowance) -> float:
    """Budget used by a trial's longest training run; 0 if the trial was not trained."""
    return max((allowance.charge(seconds=rung.cpu_s, tokens=rung.tokens) for rung in item.rungs), default=0.0)


def plan_with(
    make: Callable[[], tuple[Rung, ...]], candidates: Sequence[Candidate], allowance: Allowance
) -> tuple[Rung, ...]:
    """Plans the remaining budget; its numbers of training runs include those that ``candidates`` have finished.

    Args:
        make: Plans the remaining budget for new candidates.
        candidates: One candidate for each architecture tried so far.
        allowance: The run's budget for training.

    Raises:
        SpecError: Nothing was trained in full, and the remaining budget is too small for a full training run.
    """
    tried, final = len(candidates), allowance.final
    charges = [charge for item in candidates if (charge := charge_of(item, allowance))]
    shorter = [charge for charge in charges if charge < AS_LONG * final]
    full = len(charges) - len(shorter)
    try:
        plan = make()
    except SpecError:
        if not full:
            raise
        plan = (Rung(budget=final, count=0),)
    if len(plan) == 1 and shorter:  # the remaining budget goes to the most promising earlier candidates
        last = Rung(budget=final, count=plan[0].count + full)
        return Rung(budget=min(min(shorter), final / ETA), count=max(tried, plan[0].count)), last
    return replace(plan[0], count=plan[0].count + tried), *plan[1:]


def fit_to_plan(trials: Trials, plan: Sequence[Rung], allowance: Allowance) -> None:
    """Assigns the finished training runs of all trials to the rungs of ``plan`` by their length."""

    def place(rung: TrainedRung) -> int:
        charge = allowance.charge(seconds=rung.cpu_s, tokens=rung.tokens)
        return max((i for i, each in enumerate(plan) if charge >= AS_LONG * each.budget), default=SHORTER)

    for item in trials.all():
        placed = tuple(replace(rung, rung=place(rung)) for rung in item.rungs)
        if placed != item.rungs:
            trials.note(item.number, rungs=placed)


def seed_of(study: Study, spec: RunSpec) -> Callable[[ArchSpec], int]:
    """Returns a function that gives an architecture's seed: the one its training began with, else the run's seed."""
    kept = Record(study.memory).get("seeds", dict[str, int], {})
    return lambda arch: int(kept.get(arch.as_trained().digest, spec.seed))

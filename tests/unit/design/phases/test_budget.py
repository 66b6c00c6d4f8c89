"""The budget of trainings: what is left decides how many are made, and one-rung runs measure no more than they need."""

from __future__ import annotations

import pytest
from toy_run import PLAN, SPACE, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.halving import Halving, Rung
from chipwise.design.phases.screening import screen
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.errors import Infeasible


class Clock:
    """A budget that each training draws on, with an overhead on top of its own seconds."""

    def __init__(self, budget_s: float, overhead: float) -> None:
        self.left_s, self.overhead = budget_s, overhead


class TimedTrainer(FakeTrainer):
    def __init__(self, clock: Clock, **options) -> None:
        super().__init__(**options)
        self.clock = clock

    def run(self, jobs):
        for job, result in super().run(jobs):
            before = job.candidate.rungs[-1].cpu_s if job.candidate.rungs else 0.0
            self.clock.left_s -= self.clock.overhead * (job.budget - before)
            yield job, result


def make(trainer, *, plan=PLAN, keeps=None, clock: Clock | None = None):
    study = Study(None, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    trials = Trials(study, SPEC, SPACE)
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)
    chooser = Chooser(
        SPACE,
        screened,
        metrics,
        SPEC.goals,
        SPEC.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )
    limits = Limits(trials, keeps)
    options = {} if clock is None else {"left": lambda: clock.left_s}
    halving = Halving(
        trials,
        plan,
        chooser=chooser,
        allowance=SPEC.allowance,
        trainer=trainer,
        measurer=limits,
        predict=lambda row: {"tpot_p50": [1.0, 1.0, 1.0]},
        workers=1,
        **options,
    )
    return trials, halving, limits


@pytest.mark.parametrize("overhead", [1.0, 1.5, 3.0])
def test_trainings_that_take_longer_than_planned_become_fewer(overhead) -> None:
    """Nine first, then 4 × 2 s and 2 × 6 s: 29 s of training. With 40 s for all, an overhead of 1.5 leaves fewer."""
    clock = Clock(40.0, overhead)
    trials, halving, _ = make(TimedTrainer(clock), clock=clock)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert finalists
    first = sum(item.after(0) is not None for item in trials.all())
    assert first == 9 if overhead == 1.0 else first < 9
    # over by less than the least that a run must train: two candidates, and one promotion each rung
    assert clock.left_s >= -overhead * (6.0 if overhead > 2 else 1.0)


def test_a_run_without_a_clock_follows_its_plan() -> None:
    trainer = FakeTrainer()
    _, halving, _ = make(trainer)
    halving.explore([])
    halving.promote([])
    assert [sum(rung == r for _, rung in trainer.asked) for r in range(3)] == [9, 4, 2]


ONE = (Rung(budget=9.0, count=6),)


def test_one_rung_measures_only_until_two_keep_the_limits() -> None:
    """The best breaks its limit, the next two keep it: three are measured, not six."""
    trials, halving, limits = make(FakeTrainer(), plan=ONE)
    halving.explore([])
    ranked = [item.number for item in halving.ranked(trials.all())]
    limits.keeps = lambda item: item.number != ranked[0]
    finalists, _ = halving.promote([])
    assert [item.number for item in finalists] == ranked[1:3]
    assert limits.measured == ranked[:3]


def test_one_rung_outside_the_limits_ends_with_the_one_that_comes_closest() -> None:
    trials, halving, limits = make(FakeTrainer(), plan=ONE, keeps=lambda item: False)
    halving.explore([])
    finalists, _ = halving.promote([])
    (closest,) = finalists
    assert limits.beyond(closest) == min(map(limits.beyond, trials.all()))


def test_trainings_that_all_failed_are_called_that() -> None:
    for plan in (ONE, PLAN):
        _, halving, _ = make(FakeTrainer(diverges=(32, 64, 96, 128)), plan=plan)
        halving.explore([])
        with pytest.raises(Infeasible, match="every candidate failed in training"):
            halving.promote([])

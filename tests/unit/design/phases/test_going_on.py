"""A run that goes on with other limits, another budget or another seed keeps and uses every finished training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from toy_run import PLAN, SPACE, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.going_on import SHORTER, charge_of, fit_to_plan, plan_with, seed_of, take_up
from chipwise.design.phases.halving import Halving, Rung
from chipwise.design.phases.screening import screen
from chipwise.design.run.budget_spec import Allowance, BudgetSpec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.errors import SpecError, StorageError

SPEC_9 = replace(SPEC, budget=BudgetSpec(cpu="1 min", final="9 s"))  # as PLAN trains: 1, 3 and 9 s


def with_budget(final: str, cpu: str = "10 min"):
    return replace(SPEC, budget=BudgetSpec(cpu=cpu, final=final))


def opened(path, spec=SPEC_9):
    study = Study(path, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    return study, Trials(study, spec, SPACE)


def halving_of(trials, spec, plan, trainer, *, keeps=None, left=None):
    chooser = Chooser(
        SPACE,
        screen(SPACE, metrics, spec.limits, seed=0, draws=500),
        metrics,
        spec.goals,
        spec.limits,
        final=spec.allowance.final,
        bytes_per_token=two_bytes,
        seed=0,
    )
    return Halving(
        trials,
        plan,
        chooser=chooser,
        allowance=spec.allowance,
        trainer=trainer,
        measurer=Limits(trials, keeps),
        predict=lambda row: {"tpot_p50": [1.0, 1.0, 1.0]},
        workers=1,
        **({} if left is None else {"left": left}),
    )


def finished(path, *, keeps=None):
    """A run of PLAN that has ended: nine first trainings, four longer ones, two finalists."""
    study, trials = opened(path)
    take_up(study, trials, SPEC_9, None)
    study.remember(plan=[[rung.budget, rung.count] for rung in PLAN])
    halving = halving_of(trials, SPEC_9, PLAN, FakeTrainer(), keeps=keeps)
    halving.explore([])
    finalists, _ = halving.promote([])
    study.remember(
        winner=finalists[0].number, finalists=[[item.number for item in finalists], []], unmet=True, centre=[0]
    )
    return study, trials


def trainings(trials) -> set[tuple[int, float, int]]:
    return {(item.number, rung.cpu_s, rung.tokens) for item in trials.all() for rung in item.rungs}


def resumed(path, spec, *, rest: float):
    """The same folder under another spec, with ``rest`` seconds left: its study, trials and plan."""
    study, trials = opened(path, spec)
    take_up(study, trials, spec, None)
    if "plan" not in study.memory:
        from chipwise.design.phases.halving import plan_rungs

        tried = [item for item in trials.all() if not item.is_reference]
        plan = plan_with(lambda: plan_rungs(spec.allowance, rest), tried, spec.allowance)
        fit_to_plan(trials, plan, spec.allowance)
        study.remember(plan=[[rung.budget, rung.count] for rung in plan])
    return study, trials, tuple(Rung(budget=budget, count=count) for budget, count in study.memory["plan"])


def test_a_larger_budget_goes_on_from_every_training_and_adds_candidates(tmp_path) -> None:
    """Final trainings of 18 s instead of 9: rungs of 2, 6 and 18 s, in which 1, 3 and 9 s count as -1, 0 and 1."""
    _, before = finished(tmp_path / "s")
    held, candidates = trainings(before), len(before.all())
    spec = with_budget("18 s")
    study, trials, plan = resumed(tmp_path / "s", spec, rest=300.0)
    assert [rung.budget for rung in plan] == [2.0, 6.0, 18.0]
    assert plan[0].count > candidates
    assert not {"winner", "centre"} & study.memory.keys()
    assert trainings(trials) == held
    places = {rung.cpu_s: rung.rung for item in trials.all() for rung in item.rungs}
    assert places == {1.0: SHORTER, 3.0: 0, 9.0: 1}
    trainer = FakeTrainer()
    halving = halving_of(trials, spec, plan, trainer)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert held <= trainings(trials)
    assert len(trials.all()) > candidates
    assert all(charge_of(item, spec.allowance) == 18.0 for item in finalists)
    again = {number for number, rung in trainer.asked if number < candidates and rung == 0}
    assert not again  # what was tried is not tried again for two seconds


def test_looser_limits_alone_train_only_what_the_budget_holds(tmp_path) -> None:
    """Widths above 32 broke the limit. Now all keep it, nothing is left to train with: what was trained decides."""
    _, before = finished(tmp_path / "s", keeps=lambda item: item.design.arch.d_model == 32)
    held = trainings(before)
    spec = replace(SPEC_9, constraints={"tpot_p99": "<= 1 s"})
    study, trials, plan = resumed(tmp_path / "s", spec, rest=0.0)
    assert plan == PLAN
    assert "winner" not in study.memory
    assert all(item.notes.within is None and not item.notes.promoted for item in trials.all() if item.alive)
    trainer = FakeTrainer()
    halving = halving_of(trials, spec, plan, trainer, left=lambda: 0.0)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert finalists
    assert trainer.asked == []
    assert trainings(trials) == held


def test_with_something_left_looser_limits_train_the_most_promising_in_full(tmp_path) -> None:
    _, before = finished(tmp_path / "s", keeps=lambda item: item.design.arch.d_model == 32)
    held = trainings(before)
    spec = replace(SPEC_9, constraints={"tpot_p99": "<= 1 s"})
    _, trials, plan = resumed(tmp_path / "s", spec, rest=0.0)
    trainer = FakeTrainer()
    halving = halving_of(trials, spec, plan, trainer, left=lambda: 100.0)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert max(item.design.arch.d_model for item in finalists) == 128
    assert held <= trainings(trials)


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), StorageError("the disk is full")])
def test_a_change_that_was_not_taken_up_to_its_end_is_taken_up_again(tmp_path, monkeypatch, cause) -> None:
    finished(tmp_path / "s")
    spec = replace(SPEC_9, constraints={"tpot_p99": "<= 1 s"})
    study, trials = opened(tmp_path / "s", spec)

    def stopped(*_, **__):
        raise cause

    monkeypatch.setattr(Trials, "note", stopped)
    with pytest.raises(type(cause)):
        take_up(study, trials, spec, SPEC_9)
    monkeypatch.undo()
    study, trials = opened(tmp_path / "s", spec)
    take_up(study, trials, spec, None)  # the folder holds the new spec by now
    assert "winner" not in study.memory
    take_up(study, trials, spec, None)
    study.remember(winner=1)
    take_up(study, trials, spec, None)
    assert study.memory["winner"] == 1


def test_trainings_that_have_begun_keep_their_seed(tmp_path) -> None:
    finished(tmp_path / "s")
    spec = replace(SPEC_9, seed=7)
    study, trials, _ = resumed(tmp_path / "s", spec, rest=0.0)
    assert study.memory["winner"] is not None  # nothing that was decided depends on it
    seed = seed_of(study, spec)
    assert {seed(item.design.arch) for item in trials.all()} == {SPEC.seed}
    tried = {item.design.arch.as_trained().digest for item in trials.all()}
    other = next(
        arch
        for row in SPACE.sample(50, __import__("numpy").random.default_rng(0))
        if (arch := SPACE.design(row).arch).as_trained().digest not in tried
    )
    assert seed(other) == 7


def test_final_trainings_shorter_than_those_made_are_refused(tmp_path) -> None:
    finished(tmp_path / "s")
    spec = with_budget("5 s")
    study, trials = opened(tmp_path / "s", spec)
    with pytest.raises(SpecError, match=r"^budget\.final: one final training would be 5 s .* trained for 9 s"):
        take_up(study, trials, spec, SPEC_9)
    assert "winner" in study.memory


def trial(*seconds: float):
    rungs = tuple(SimpleNamespace(cpu_s=each, tokens=0) for each in seconds)
    return SimpleNamespace(rungs=rungs)


CPU = Allowance(unit="cpu", total=1e3, final=9.0, whole=True)


def refused():
    raise SpecError("0 s are left", field="budget")


@pytest.mark.parametrize(
    ("tried", "made", "expected"),
    [
        ([], (Rung(budget=9, count=4),), (Rung(budget=9, count=4),)),
        ([trial(9.0)], (Rung(budget=9, count=4),), (Rung(budget=9, count=5),)),
        # two full trainings more: of the six that were tried for a second, the best two
        ([trial(1.0)] * 6, (Rung(budget=9, count=2),), (Rung(budget=1, count=6), Rung(budget=9, count=2))),
        ([trial(1.0), trial(1.0, 9.0)], None, (Rung(budget=1, count=2), Rung(budget=9, count=1))),
        ([trial(1.0, 9.0)] * 2, None, (Rung(budget=9, count=2),)),
    ],
)
def test_plans_by_hand(tried, made, expected) -> None:
    assert plan_with((lambda: made) if made else refused, tried, CPU) == expected


def test_what_never_was_trained_in_full_needs_a_budget_for_it() -> None:
    with pytest.raises(SpecError, match="0 s are left"):
        plan_with(refused, [trial(1.0), trial(3.0)], CPU)


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), StorageError("the disk is full")])
def test_a_search_that_stopped_in_its_trainings_goes_on_with_a_changed_file(tmp_path, cause) -> None:
    """Three candidates are trained when it stops; with a larger budget and looser limits none is trained again."""

    class Stopping(FakeTrainer):
        def run(self, jobs):
            for done in super().run(jobs):
                if len(self.asked) > 3:
                    raise cause
                yield done

    study, trials = opened(tmp_path / "s")
    take_up(study, trials, SPEC_9, None)
    study.remember(plan=[[rung.budget, rung.count] for rung in PLAN])
    with pytest.raises(type(cause)):
        halving_of(trials, SPEC_9, PLAN, Stopping()).explore([])
    held = trainings(trials)
    assert len(held) == 3
    spec = replace(with_budget("9 s"), constraints={"tpot_p99": "<= 1 s"})
    _, trials, plan = resumed(tmp_path / "s", spec, rest=100.0)
    trainer = FakeTrainer()
    halving = halving_of(trials, spec, plan, trainer)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert finalists
    assert held <= trainings(trials)
    assert not {(number, 0) for number, _, _ in held} & set(trainer.asked)

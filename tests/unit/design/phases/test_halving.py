"""Successive halving with a fake trainer: promotions, the cost of failures, and work repeated on resume."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from toy_run import PLAN, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.halving import ALL_FAILED, Halving, Rung
from chipwise.design.phases.screening import screen
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.errors import Infeasible
from chipwise.model.space.search_space import SearchSpace


def make(path, trainer, *, measure=None, spec=SPEC, plan=PLAN):
    space = SearchSpace(spec.space)
    study = Study(path, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(space))
    trials = Trials(study, spec, space)

    measurer = Limits(trials, measure)

    screened = screen(space, metrics, spec.limits, seed=0, draws=500)
    chooser = Chooser(
        space,
        screened,
        metrics,
        spec.goals,
        spec.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )
    halving = Halving(
        trials,
        plan,
        chooser=chooser,
        allowance=SPEC.allowance,
        trainer=trainer,
        measurer=measurer,
        predict=lambda row: {"tpot_p50": [1.0, 1.0, 1.0]},
        workers=1,
    )
    return trials, halving


def test_the_widest_that_fits_wins_and_each_rung_narrows(tmp_path) -> None:
    trainer = FakeTrainer()
    trials, halving = make(tmp_path / "s", trainer)
    halving.explore([])
    finalists, baseline = halving.promote([])
    assert baseline is None
    per_rung = [sum(rung == r for _, rung in trainer.asked) for r in range(3)]
    assert per_rung == [9, 4, 2]
    tried = max(item.design.arch.d_model for item in trials.all())
    assert finalists[0].design.arch.d_model == tried == 128


def test_every_candidate_keeps_the_limits_and_none_is_tried_twice(tmp_path) -> None:
    trials, halving = make(tmp_path / "s", FakeTrainer())
    halving.explore([])
    rows = [tuple(item.row) for item in trials.all()]
    assert len(set(rows)) == len(rows) == 9
    assert (metrics(np.array(rows))["tpot_p99"] <= 300e-6).all()


def test_a_candidate_that_diverges_fails_with_its_reason_and_the_rest_goes_on(tmp_path) -> None:
    trials, halving = make(tmp_path / "s", FakeTrainer(diverges=(128,)))
    halving.explore([])
    finalists, _ = halving.promote([])
    failed = [item for item in trials.all() if item.trial.state == "failed"]
    assert failed
    assert all("no longer finite" in item.notes.reason for item in failed)
    assert finalists[0].design.arch.d_model == 96


def test_what_is_measured_outside_the_limits_does_not_go_on(tmp_path) -> None:
    trainer = FakeTrainer()
    trials, halving = make(tmp_path / "s", trainer, measure=lambda item: item.design.arch.d_model < 128)
    halving.explore([])
    halving.promote([])
    promoted = {number for number, rung in trainer.asked if rung > 0}
    assert promoted
    assert all(trials[number].design.arch.d_model < 128 for number in promoted)


def test_where_nothing_keeps_the_limits_the_one_that_comes_closest_goes_on(tmp_path) -> None:
    """A toy candidate is the further past its limit the wider it is, so the narrowest is trained in full."""
    trials, halving = make(tmp_path / "s", FakeTrainer(), measure=lambda item: False)
    halving.explore([])
    finalists, _ = halving.promote([])
    narrowest = min(trials.all(), key=lambda item: item.design.arch.d_model)
    assert [item.design.arch.d_model for item in finalists] == [narrowest.design.arch.d_model]


FULL_TRAININGS = (Rung(budget=9.0, count=5),)


def test_with_full_trainings_alone_the_best_two_are_measured_and_no_more(tmp_path) -> None:
    trials, halving = make(tmp_path / "s", FakeTrainer(), plan=FULL_TRAININGS)
    halving.explore([])
    finalists, _ = halving.promote([])
    best = sorted(trials.all(), key=lambda item: item.quality)[:2]
    assert halving._measurer.measured == [item.number for item in finalists]
    assert sorted(item.quality for item in finalists) == [item.quality for item in best]


def test_trainings_that_all_failed_are_an_error_whose_finished_work_is_kept(tmp_path) -> None:
    _, halving = make(tmp_path / "s", FakeTrainer(diverges=(32, 64, 96, 128)), plan=FULL_TRAININGS)
    halving.explore([])
    with pytest.raises(Infeasible, match=ALL_FAILED):
        halving.promote([])


def test_a_search_that_was_killed_decides_the_same_and_repeats_nothing(tmp_path) -> None:
    whole = FakeTrainer()
    _, halving = make(tmp_path / "whole", whole)
    halving.explore([])
    expected, _ = halving.promote([])

    class Killed(Exception):
        pass

    class Dying(FakeTrainer):
        def __init__(self, after: int) -> None:
            super().__init__()
            self.after = after

        def run(self, jobs):
            for done in super().run(jobs):
                if len(done_jobs) == self.after:
                    raise Killed
                done_jobs.append((done[0].candidate.number, done[0].rung))
                yield done

    done_jobs: list[tuple[int, int]] = []
    for after in (2, 7, 10, 14, 100):
        _, halving = make(tmp_path / "parts", Dying(after))
        try:
            halving.explore([])
            finalists, _ = halving.promote([])
        except Killed:
            continue
    assert len(set(done_jobs)) == len(done_jobs) == len(whole.asked)
    assert [item.row for item in finalists] == [item.row for item in expected]


class RoundingTrainer(FakeTrainer):
    """Rounding to 4 bits costs 0.1 bits per byte, to 8 nothing."""

    def run(self, jobs):
        for job, result in super().run(jobs):
            lost = 0.1 if job.candidate.design.weights == "int4" else 0.0
            yield job, result | {"quantised_loss": result["loss"] + lost}


def test_a_finalist_takes_the_format_that_rounds_least_within_the_limits(tmp_path) -> None:
    """Where 8 bits are measured outside the limits, it stays in 4; what shares a training is asked once, also again."""
    formats = replace(SPEC, space=replace(SPEC.space, weights=("int8", "int4")))
    trials, halving = make(tmp_path / "free", RoundingTrainer(), spec=formats)
    halving.explore([])
    for _ in range(2):
        finalists, _ = halving.promote([])
        assert {item.design.weights for item in finalists} == {"int8"}
        architectures = [item.design.arch.digest for item in trials.all() if item.format_of is None]
        assert len(set(architectures)) == len(architectures) == 9
        assert sum(item.format_of is not None for item in trials.all()) <= 2
    trials, halving = make(
        tmp_path / "bound", RoundingTrainer(), spec=formats, measure=lambda item: item.design.weights == "int4"
    )
    halving.explore([])
    assert {item.design.weights for item in halving.promote([])[0]} == {"int4"}


def test_layers_keep_the_formats_that_were_chosen_and_the_head_takes_the_best(tmp_path) -> None:
    """Rounding costs 0.1 bits per byte for the head in 4 bits, and 0.01 for each layer."""

    class LayersTrainer(FakeTrainer):
        def run(self, jobs):
            for job, result in super().run(jobs):
                formats = job.candidate.design.formats
                lost = 0.1 * (formats.head == "int4") + 0.01 * formats.layers.count("int4")
                yield job, result | {"quantised_loss": result["loss"] + lost}

    layer = replace(SPEC.space.layer, weights=("int8", "int4"))
    mixed = replace(SPEC, space=replace(SPEC.space, weights=("int4", "int8"), layer=layer))
    trials, halving = make(tmp_path / "mixed", LayersTrainer(), spec=mixed)
    halving.explore([])
    finalists, _ = halving.promote([])
    assert {item.design.formats.head for item in finalists} == {"int8"}
    assert len({item.design.formats.layers for item in trials.all()}) > 2
    chosen = [item for item in trials.all() if item.format_of is not None]
    assert chosen
    for item in chosen:
        assert item.design.formats.layers == trials[item.format_of].design.formats.layers
        assert item.design.arch == trials[item.format_of].design.arch


def test_spare_candidates_begin_with_what_was_trained_to_the_end(tmp_path) -> None:
    formats = replace(SPEC, space=replace(SPEC.space, weights=("int8", "int4")))
    _, halving = make(tmp_path / "s", RoundingTrainer(), spec=formats)
    halving.explore([])
    finalists, _ = halving.promote([])
    spare = halving.spare(finalists)
    trained = [item.after(2) is not None for item in spare]
    assert trained == sorted(trained, reverse=True)
    assert spare
    assert not {item.number for item in spare} & {item.number for item in finalists}
    assert all(item.notes.within for item in spare)


def test_a_training_is_worth_what_it_is_worth_in_its_best_form(monkeypatch) -> None:
    """Losses of 0.4, 0.3 and 0.5; that of the last is halved in another form, which makes it the best."""
    expected, better = np.array([0.4, 0.3, 0.5]), [1.0, 1.0, 0.5]
    halving = object.__new__(Halving)
    halving._chooser = SimpleNamespace(
        expected=lambda observations, rows: (expected.copy(), 0.1 * expected), better_served=lambda row: better[row[0]]
    )
    halving._penalty_factor = lambda item: 1.0
    monkeypatch.setattr(Halving, "observations", lambda self: [None] * 3)
    items = [SimpleNamespace(row=(i,), number=i) for i in range(3)]
    assert [item.number for item in halving.ranked(items)] == [2, 1, 0]

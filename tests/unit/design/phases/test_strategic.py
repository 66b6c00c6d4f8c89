"""A strategy of the table in the place of the run's own chooser: the same limits, the same rungs, the same answers."""

from __future__ import annotations

import numpy as np
import pytest
from toy_run import PLAN, SPACE, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.halving import Halving
from chipwise.design.phases.screening import screen
from chipwise.design.phases.strategy_proposer import StrategyProposer
from chipwise.design.run.spec import run_spec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.algorithms import STRATEGIES
from chipwise.design.strategies.study import Study
from chipwise.errors import SpecError


def make(path, trainer, name, seed=0):
    study = Study(path, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    trials = Trials(study, SPEC, SPACE)
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)
    own = Chooser(
        SPACE,
        screened,
        metrics,
        SPEC.goals,
        SPEC.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=seed,
    )
    halving = Halving(
        trials,
        PLAN,
        chooser=own,
        allowance=SPEC.allowance,
        propose=StrategyProposer(name, own, seed=seed),
        trainer=trainer,
        measurer=Limits(trials),
        predict=lambda row: {"tpot_p50": [1.0, 1.0, 1.0]},
        workers=1,
    )
    return trials, halving


@pytest.mark.parametrize("name", [name for name in STRATEGIES.names() if name not in ("auto", "vizier")])
def test_a_strategy_spends_the_same_budget_within_the_same_limits(tmp_path, name) -> None:
    trainer = FakeTrainer()
    trials, halving = make(tmp_path / "s", trainer, name)
    halving.explore([])
    halving.promote([])
    rows = [tuple(item.row) for item in trials.all()]
    assert len(set(rows)) == len(rows) == PLAN[0].count
    assert [sum(rung == r for _, rung in trainer.asked) for r in range(3)] == [9, 4, 2]
    assert all(metrics(SPACE.canonical([row]))["tpot_p99"][0] <= 300e-6 for row in rows)


def test_the_strategy_decides_who_is_trained(tmp_path) -> None:
    found = []
    for i, (name, seed) in enumerate([("random", 0), ("random", 1), ("evolution", 0)]):
        trials, halving = make(tmp_path / str(i), FakeTrainer(), name, seed)
        halving.explore([])
        found.append([tuple(item.row) for item in trials.all()])
    assert found[0] != found[1]


def test_a_search_that_was_killed_asks_the_strategy_for_the_same(tmp_path) -> None:
    whole, halving = make(tmp_path / "whole", FakeTrainer(), "evolution")
    halving.explore([])

    class Killed(Exception):
        pass

    class Dying(FakeTrainer):
        def run(self, jobs):
            for count, done in enumerate(super().run(jobs)):
                if count == 1:
                    raise Killed
                yield done

    parts = None
    for _ in range(10):
        parts, halving = make(tmp_path / "parts", Dying(), "evolution")
        try:
            halving.explore([])
        except Killed:
            continue
    assert [item.row for item in parts.all()] == [item.row for item in whole.all()]


def test_the_file_names_the_strategy_and_a_name_alone_is_enough() -> None:
    data = {
        "name": "toy",
        "workload": {},
        "space": {
            "d_model": [32],
            "depth": [1],
            "vocab_size": [512],
            "layer": {"heads": [1], "kv_heads": [1], "ffn_width": [64]},
        },
        "data": {},
    }
    long = run_spec(data | {"search": {"strategy": "evolution"}}, file="x.yaml")
    short = run_spec(data | {"search": "evolution"}, file="x.yaml")
    assert long.search == short.search
    assert long.identity == short.identity != run_spec(data, file="x.yaml").identity
    with pytest.raises(SpecError, match=r"search\.strategy: unknown strategy; did you mean 'evolution'"):
        run_spec(data | {"search": {"strategy": "evolutoin"}}, file="x.yaml")


def test_each_batch_is_drawn_anew_and_the_same_after_the_same_trials(tmp_path) -> None:
    """A strategy is made for each batch: had all the same seed, the second batch would be the first once more."""
    _, halving = make(tmp_path / "s", FakeTrainer(), "random")
    propose = halving._propose
    first = [tuple(row) for row in propose(4, [], [])]
    assert [tuple(row) for row in propose(4, [], [])] == first
    beside = next(tuple(row) for row in SPACE.sample(50, np.random.default_rng(1)) if tuple(row) not in first)
    other = [tuple(row) for row in propose(4, [], [beside])]
    assert other != first
    assert beside not in other

"""Soft limits through a run: a low penalty is paid, a high one keeps the limit, for whoever chooses the trainings."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from test_findings import Trained
from toy_run import MEASURED, PLAN, SPACE, SPEC, FakeTrainer, Limits, metrics, two_bytes

from chipwise.core.files import build
from chipwise.design.limits import parse_constraints
from chipwise.design.phases.choosing import Chooser, Observation
from chipwise.design.phases.finals import Finals
from chipwise.design.phases.findings import explain_answer
from chipwise.design.phases.halving import Halving
from chipwise.design.phases.limits import no_slower_than, penalty_factor
from chipwise.design.phases.measurement_choice import next_of, worth_measuring
from chipwise.design.phases.screening import screen
from chipwise.design.phases.strategy_proposer import StrategyProposer
from chipwise.design.run.spec import RunSpec, run_spec
from chipwise.design.run.start_spec import any_spec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.design.targets.sustained import cold
from chipwise.hardware.device import Thermal

LOW, HIGH = 0.01, 5.0


def soft(penalty: float) -> RunSpec:
    """The toy: bits per byte 1 + … + 10 / width, seconds by width and depth; 64 µs may be exceeded."""
    return dataclasses.replace(SPEC, constraints={"tpot_p99": {"limit": "<= 64 us", "penalty": penalty}})


def chooser_of(spec: RunSpec) -> Chooser:
    screened = screen(SPACE, metrics, spec.limits, seed=0, draws=500)
    return Chooser(
        SPACE,
        screened,
        metrics,
        spec.goals,
        spec.limits,
        final=9.0,
        bytes_per_token=two_bytes,
        seed=0,
    )


def run(spec: RunSpec, name: str) -> list:
    """Finalists of the toy, the best first."""
    own = chooser_of(spec)
    propose = {"auto": lambda: own.next, "proxy": lambda: own.propose_by_law}.get(
        name, lambda: StrategyProposer(name, own, seed=0)
    )()
    study = Study(None, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    trials = Trials(study, spec, SPACE)
    halving = Halving(
        trials,
        PLAN,
        chooser=own,
        allowance=spec.allowance,
        propose=propose,
        trainer=FakeTrainer(),
        measurer=Limits(trials),
        predict=lambda row: {name: [float(v[0])] * 3 for name, v in metrics(row).items()},
        workers=1,
        penalty_factor=penalty_factor(spec),
    )
    halving.explore([])
    return halving.promote([])[0]


def test_the_screen_keeps_what_is_past_a_soft_limit_and_tells_what_it_pays() -> None:
    spec = soft(0.5)
    screened = screen(SPACE, metrics, spec.limits, seed=0, draws=500)
    assert screened.feasible_share == 1.0
    chooser = chooser_of(spec)
    rows = chooser.pool
    over = np.maximum(metrics(rows)["tpot_p99"] / 64e-6 - 1, 0)
    assert chooser.penalty_factor(rows) == pytest.approx(1 + 0.5 * over)
    assert over.max() > 1


@pytest.mark.parametrize("name", ["auto", "proxy", "evolution", "random", "reinforce", "gradient"])
def test_a_low_penalty_is_paid_and_a_high_one_keeps_the_limit(name) -> None:
    """Width 128 against 64 saves 10/64 - 10/128 = 0.078 bits: more than 1 % of its double, less than 500 %."""
    paying, keeping = (run(soft(penalty), name)[0] for penalty in (LOW, HIGH))
    assert paying.costs["tpot_p99"] > 64e-6
    assert keeping.costs["tpot_p99"] <= 64e-6


def test_only_a_hard_limit_is_measured_for() -> None:
    promise = {"tpot_p99": [64e-6, 50e-6, 80e-6]}
    hard = parse_constraints({"tpot_p99": "<= 64 us"})
    assert worth_measuring("hybrid", promise, hard, novelty=0.0, headroom=1.0) is not None
    assert worth_measuring("hybrid", promise, soft(LOW).limits, novelty=0.0, headroom=1.0) is None


def test_the_baselines_pace_is_no_cap_where_a_soft_limit_sells_it() -> None:
    drawn = [SimpleNamespace(measured={"tpot_p50": 50e-6}, costs={"tpot_p50": 50e-6})]
    assert [item.limit for item in no_slower_than(drawn, SPEC.limits)] == [50e-6]
    assert no_slower_than(drawn, soft(LOW).limits) == ()


def final(number: int, bits: float, seconds: float) -> SimpleNamespace:
    measured = {"tpot_p50": seconds, "tpot_p99": seconds}
    notes = SimpleNamespace(exported_loss=bits, final=True, clean=True)
    held = {"measured": measured, "costs": measured, "known": measured, "tasks": {}}
    return SimpleNamespace(number=number, alive=True, design=None, notes=notes, **held)


class Measured(Finals):
    """Everything was measured already."""

    def measure(self, contenders) -> None: ...


@pytest.mark.parametrize(("penalty", "wins"), [(0.01, 1), (0.5, 0)])
def test_the_winner_has_the_fewest_bits_as_they_count(penalty, wins) -> None:
    """1.30 within the limit against 1.20 at its double: 1.212 or 1.80. The baseline is faster than both."""
    spec = soft(penalty)
    items = [final(0, 1.30, 60e-6), final(1, 1.20, 128e-6), final(2, 1.5, 40e-6)]
    finish = Measured(items, spec, None, None, MEASURED, penalty_factor=penalty_factor(spec))
    assert finish.decide(items[:2], items[2]).number == wins


def test_what_cannot_be_measured_holds_as_predicted() -> None:
    spec = dataclasses.replace(
        SPEC, target=dataclasses.replace(SPEC.target, power="10 W"), constraints={"joules_per_token": "<= 1 mJ"}
    )
    items = [final(0, 1.2, 60e-6), final(1, 1.3, 60e-6)]
    items[0].costs = items[0].known = items[0].measured | {"joules_per_token": 1.1e-3}
    items[1].costs = items[1].measured | {"joules_per_token": 0.9e-3}
    finish = Measured(items, spec, None, None, MEASURED)
    assert finish.decide(items, None).number == 1
    assert finish.met
    assert finish.decide(items[:1], None).number == 0
    assert not finish.met


def test_measuring_along_the_front_weighs_what_is_paid() -> None:
    """Of two unmeasured candidates, one that leads only while its penalty is forgotten is not worth a measurement."""

    def item(number, bits, seconds, measured):
        notes = SimpleNamespace(within=True)
        known = {"tpot_p50": seconds, "tpot_p99": seconds} if measured else None
        return SimpleNamespace(
            number=number,
            measured=known,
            notes=notes,
            after=lambda rung: SimpleNamespace(quantised_loss=bits),
        )

    items = [item(0, 1.30, 60e-6, True), item(1, 1.25, 128e-6, False)]
    goals = build(RunSpec, {"name": "x", "workload": {}, "space": _space(), "data": {}}).goals[:1]
    seconds = {0: 60e-6, 1: 128e-6}

    def promise(one):
        return {name: [seconds[one.number]] * 3 for name in ("tpot_p50", "tpot_p99")}

    both = (*goals, dataclasses.replace(goals[0], metric="tpot_p50"))
    assert next_of(items, promise, both, soft(LOW).limits).number == 1
    assert next_of(items, promise, both, soft(HIGH).limits) is None


def _space():
    layer = {"heads": [1], "kv_heads": [1], "ffn_width": [64]}
    return {"d_model": [32], "depth": [1], "vocab_size": [512], "layer": layer}


def test_relaxing_a_soft_limit_makes_designs_cheaper() -> None:
    chooser = chooser_of(soft(0.05))
    rows = chooser.pool[np.random.default_rng(0).permutation(len(chooser.pool))[:24]]
    seen = [Observation(row.tolist(), 9.0, 9_000, 1.0 + 20.0 / SPACE.values(row[None], "d_model")[0]) for row in rows]
    found = explain_answer(SPACE, chooser, seen, [Trained(i, row.tolist()) for i, row in enumerate(rows)], seed=0)
    (item,) = found["relaxed"]
    assert item["limit"] == "tpot_p99"
    assert item["gain"] > 0
    before, after = item["best"]["bits_per_byte"]
    assert after < before
    assert item["best"]["tpot_p50"][0] == item["best"]["tpot_p50"][1]


def test_soft_limits_elsewhere_are_paid_for_by_what_the_data_sheet_predicts() -> None:
    spec = run_spec(
        {
            "name": "toy",
            "workload": {},
            "space": _space(),
            "data": {},
            "targets": [{"device": "l4", "constraints": {"power": {"limit": "<= 10 W", "penalty": 0.1}}}],
        },
        file="toy.yaml",
    )
    from chipwise.design.phases.other_devices import OtherDevices
    from chipwise.model.space.search_space import SearchSpace

    space = SearchSpace(spec.space)
    others = OtherDevices(spec, space)
    design = space.design(space.sample(1, np.random.default_rng(0))[0])
    watts = others.sheets["l4"].predict(design)["power"][0]
    item = SimpleNamespace(design=design, costs={})
    assert penalty_factor(spec, others.predict)(item) == pytest.approx(1 + 0.1 * (watts / 10 - 1))
    assert watts > 10


def test_a_soft_limit_on_sustained_speed_stays_soft() -> None:
    hot = Thermal(sustained_share=2 / 3, time_constant_s=60.0, throttle_s=41.6, observed_s=600.0)
    (limit,) = parse_constraints(cold({"tpot_sustained": {"limit": "<= 3 ms", "penalty": "10 %"}}, hot))
    assert (limit.metric, limit.limit, limit.penalty) == ("tpot_p50", pytest.approx(2e-3), 0.1)


def test_a_run_that_cuts_a_model_has_hard_limits_alone() -> None:
    data = {"name": "cut", "start_from": "x", "workload": {}, "data": {}}
    with pytest.raises(Exception, match=r"constraints\.ttft_p50: limits of a cut must be hard"):
        any_spec(data | {"constraints": {"ttft_p50": {"limit": "<= 3 ms", "penalty": 1}}}, file="cut.yaml")
    with pytest.raises(Exception, match=r"target\.power: runs that cut a model do not support this"):
        any_spec(data | {"constraints": {"ttft_p50": "<= 3 ms"}, "target": {"power": "3 W"}}, file="cut.yaml")

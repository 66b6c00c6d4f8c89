"""A promise is written once: no measurement of its candidate, nor anything learnt from it, changes it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from toy_run import SPACE, SPEC

from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.phases.measuring import CandidateMeasurer, bounds_of, measurement_notes
from chipwise.design.phases.run_record import _promises
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.design.targets.cost_model import CostModel
from support.machines import core_like


def measurement(values: dict[str, float], *, dispersion: float, samples: int = 200) -> Measurement:
    """Every sample alike; the machine was busy, the less so the smaller the dispersion."""
    return Measurement(
        design="d",
        name="m",
        runtime="onnxruntime",
        runtime_version="1",
        threads=1,
        workload=SPEC.workload,
        device="x",
        ttft_s=(values["ttft_p50"],) * samples,
        tpot_s=(values["tpot_p50"],) * samples,
        cpu_s=1.0,
        peak_memory_bytes=int(values["peak_memory"]),
        clean=False,
        reasons=("busy",),
        environment={"dispersion": dispersion},
    )


class Scripted:
    """Predicts by a cost model and measures what it was given, in order."""

    measures, limits = True, ()

    def __init__(self, costs: CostModel, *found: Measurement) -> None:
        self.found = list(found)
        self.predict, self.learn, self.novelty = costs.predict, costs.learn, costs.novelty

    def measure(self, design, folder) -> Measurement:
        return self.found.pop(0)


@pytest.fixture
def run(tmp_path):
    study = Study(None, name="t", directions=["minimize", "minimize"], identity="x", choices=choice_labels(SPACE))
    trials = Trials(study, SPEC, SPACE)
    costs = CostModel(SPACE, SPEC.workload, core_like())
    row = SPACE.sample(1, np.random.default_rng(3))[0]
    number = trials.add(row, predicted=costs.predict(SPACE.design(row)))
    folder = SimpleNamespace(trial=lambda number: tmp_path)
    return trials, number, costs, folder


def test_the_promise_is_what_was_predicted_before_the_first_of_two_measurements(run) -> None:
    """The machine is 60 % slower than predicted: it stays 60 % off, though the cost model learns of it."""
    trials, number, costs, folder = run
    promised = {metric: bounds[0] for metric, bounds in trials[number].notes.predicted.items()}
    truth = {metric: 1.6 * value for metric, value in promised.items()}
    twice = Scripted(costs, measurement(truth, dispersion=6.0), measurement(truth, dispersion=4.0))
    measurer = CandidateMeasurer(trials, SPEC, folder, twice)
    for _ in range(2):
        measurer.measure(trials[number], because="front")
        found = {item.metric: item for item in _promises(trials.all())}
        for metric in ("ttft_p50", "tpot_p50"):
            assert found[metric].promised == promised[metric]
            assert found[metric].measured / found[metric].promised == pytest.approx(1.6, rel=1e-6)
    now = trials[number].notes.believed_now["tpot_p50"][0]
    assert abs(now / truth["tpot_p50"] - 1) < abs(promised["tpot_p50"] / truth["tpot_p50"] - 1)
    assert trials[number].costs["tpot_p50"] == truth["tpot_p50"]


def test_the_quieter_of_two_measurements_counts(run) -> None:
    trials, number, costs, folder = run
    truth = {metric: bounds[0] for metric, bounds in trials[number].notes.predicted.items()}
    slow = {metric: 2 * value for metric, value in truth.items()}
    measurer = CandidateMeasurer(
        trials, SPEC, folder, Scripted(costs, measurement(truth, dispersion=4.0), measurement(slow, dispersion=6.0))
    )
    for _ in range(2):
        measurer.measure(trials[number], because="front")
    assert trials[number].measured["tpot_p50"] == pytest.approx(truth["tpot_p50"])


def test_nothing_can_rewrite_a_promise_or_misspell_a_note(run) -> None:
    trials, number, *_ = run
    with pytest.raises(TypeError, match="predicted"):
        trials.note(number, predicted={})
    with pytest.raises(TypeError, match="mesured"):
        trials.note(number, mesured={})


def test_what_is_believed_now_counts_where_nothing_was_measured(run) -> None:
    trials, number, *_ = run
    trials.note(number, believed_now={"tpot_p50": [7.0, 6.0, 8.0]})
    assert trials[number].costs["tpot_p50"] == 7.0
    assert trials[number].costs["ttft_p50"] == trials[number].notes.predicted["ttft_p50"][0]
    trials.note(number, measured={"tpot_p50": 9.0})
    assert trials[number].costs["tpot_p50"] == 9.0


def test_few_samples_do_not_bound_a_p99_and_the_notes_say_so(run) -> None:
    """0.99^200 = 13 %: of 200 samples the largest may well lie below the P99; 0.99^400 = 1.8 % is below 2.5 %."""
    trials, number, *_ = run
    values = {metric: bounds[0] for metric, bounds in trials[number].notes.predicted.items()}
    few = bounds_of(measurement(values, dispersion=4.0), final=True)
    many = bounds_of(measurement(values, dispersion=4.0, samples=400), final=True)
    assert few["tpot_p99"][1] is None
    assert many["tpot_p99"][1] == pytest.approx(values["tpot_p50"])
    assert few["tpot_p50"] == [pytest.approx(values["tpot_p50"])] * 2
    notes = measurement_notes(measurement(values, dispersion=4.0), SPEC.target.rates, final=True)
    assert notes["measured_bounds"] == few
    assert notes["final"] is False  # it was not clean

"""Learning from the store: which measurements are used, how many are needed, and how errors are reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chipwise.deploy.calibrate.learning import fit_from_measurements, predict_seconds
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore, earlier_profiles, save_profile, saved_profile
from chipwise.errors import InputError
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from support.machines import core_like, other

WORKLOAD = Workload(prompt_tokens=16, new_tokens=16)


def filled(path: Path, count: int, *, device: str = "known", runtime: str = "fake") -> MeasurementStore:
    store, truth = MeasurementStore(path), other(core_like(), attention=1.5, int8=0.75)
    for design in random_designs(count, seed=0):
        ttft, tpot = (predict_seconds(truth, design, phase, WORKLOAD) for phase in (Phase.PREFILL, Phase.DECODE))
        found = Measurement(
            design=design.digest,
            name="toy",
            runtime=runtime,
            runtime_version="1",
            threads=1,
            workload=WORKLOAD,
            device=device,
            ttft_s=(ttft,) * 3,
            tpot_s=(tpot,) * 3,
            cpu_s=0.1,
            peak_memory_bytes=None,
            clean=True,
        )
        store.add(found, design=design, source="test")
    return store


def test_errors_on_what_was_left_out_fall(tmp_path) -> None:
    learned = fit_from_measurements(core_like(), filled(tmp_path / "s", 30))
    assert len(learned.used) == 30
    assert learned.profile.learned_from == 30
    assert learned.after["decode"].mape < 0.5 * learned.before["decode"].mape
    assert learned.after["decode"].models == 30
    assert learned.profile.checks["decode"].spread < core_like().checks["decode"].spread


def test_few_shot_takes_as_many_as_it_is_told_and_the_same_by_seed(tmp_path) -> None:
    store = filled(tmp_path / "s", 20)
    first, again = (fit_from_measurements(core_like(), store, count=8, seed=1) for _ in range(2))
    assert len(first.used) == 8
    assert first.used == again.used
    assert first.used != fit_from_measurements(core_like(), store, count=8, seed=2).used
    assert first.after["decode"].mape < first.before["decode"].mape


@pytest.mark.parametrize("where", [{"device": "phone"}, {"runtime": "onnxruntime"}])
def test_measurements_of_other_machines_and_runtimes_do_not_count(where, tmp_path) -> None:
    with pytest.raises(InputError, match=r"holds 0 measurements of known in fake"):
        fit_from_measurements(core_like(), filled(tmp_path / "s", 5, **where))


def test_encoders_teach_nothing_of_decoding(tmp_path) -> None:
    store = filled(tmp_path / "s", 8)
    design = random_designs(1, seed=1)[0]
    found = dataclasses.replace(store.entries()[0].measurement, tpot_s=(), design=design.digest)
    store.add(found, design=design, source="test")
    assert len(fit_from_measurements(core_like(), store).used) == 8


def test_an_encoder_decoder_among_the_measurements_is_passed_over(tmp_path) -> None:
    """Measurements that the cost model cannot price are ignored without affecting others."""
    store = filled(tmp_path / "s", 8)
    odd = Design(arch=resolve("google-t5/t5-small"))
    store.add(dataclasses.replace(store.entries()[0].measurement, design=odd.digest), design=odd, source="measure")
    assert len(store.entries()) == 9
    assert len(fit_from_measurements(core_like(), store).used) == 8


def test_a_replaced_profile_is_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    profiles = [dataclasses.replace(core_like(), created=f"day {day}") for day in (1, 2, 3)]
    for profile in profiles:
        path = save_profile(profile, runtime="fake", threads=1)
    assert MachineProfile.load(path).created == "day 3"
    assert [MachineProfile.load(each).created for each in earlier_profiles("fake", 1)] == ["day 1", "day 2"]
    assert saved_profile("fake", 1).created == "day 3"

"""Calibrations for a space and on a machine that is slow at times, over scripted measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from chipwise.deploy.calibrate import calibrate as calibration
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.calibrate.random_models import random_classifiers
from chipwise.deploy.measure.measurement import Measurement
from chipwise.model.ops.workload import Workload


def made(seconds: float, slower: float) -> Measurement:
    """Passes of ``seconds`` while reference work took ``slower`` times its usual millisecond throughout."""
    return Measurement(
        design="", name="toy", runtime="fake", runtime_version="1", threads=1, workload=Workload(), device="toy",
        ttft_s=(seconds * slower,) * 8, tpot_s=(), cpu_s=1.0, peak_memory_bytes=None, clean=True,
        environment={"reference_s": {"compute_s": 1e-3 * slower}, "reference_own_s": {"compute_s": 1e-3 * slower}},
    )  # fmt: skip


def scripted(monkeypatch: pytest.MonkeyPatch, slower: list[list[float]]) -> list[int]:
    """Lets the n-th measurement of design i be ``slower[i][n]`` times as slow; returns the order of designs."""
    order: list[int] = []
    script = [list(turns) for turns in slower]

    def export(runtime: str, design: object, folder: Path) -> tuple[object, Path]:
        (folder / "model").touch()
        order.append(DESIGNS.index(design))
        return design, folder / "model"

    monkeypatch.setattr(calibration, "export_nearest", export)
    monkeypatch.setattr(calibration, "measure", lambda *_, **__: made(1e-4, script[order[-1]].pop(0)))
    return order


DESIGNS = random_classifiers(6, seed=0)
HOW = {"runtime": "fake", "threads": 1, "vary": False, "on_progress": lambda step, share: None}


def test_what_was_slow_throughout_is_measured_once_more_and_the_better_counts(monkeypatch) -> None:
    order = scripted(monkeypatch, [[1.0], [1.6, 1.02], [1.05], [1.7, 1.9], [1.0], [1.03]])
    samples = calibration.measure_models(DESIGNS, CALIBRATED["images"], **HOW)
    assert order == [0, 1, 2, 3, 4, 5, 1, 3]
    kept = [sample.measured.environment["reference_s"]["compute_s"] * 1e3 for sample in samples]
    assert kept == pytest.approx([1.0, 1.02, 1.05, 1.7, 1.0, 1.03])


def test_without_time_for_more_each_model_is_measured_once(monkeypatch) -> None:
    order = scripted(monkeypatch, [[1.0], [1.6], [1.05], [1.7], [1.0], [1.03]])
    assert len(calibration.measure_models(DESIGNS, CALIBRATED["images"], **HOW, again=False)) == 6
    assert order == [0, 1, 2, 3, 4, 5]


def test_reference_work_of_a_calibration_is_that_of_the_machines_own_speed() -> None:
    """Six of ten models met a neighbour; the drift of the others is none."""
    found = [made(1e-4, slower) for slower in (1.0,) * 4 + (1.6,) * 6]
    reference_s = calibration.own_reference(found)
    assert reference_s == {"compute_s": pytest.approx(1e-3)}
    sample = calibration.Sample(design=DESIGNS[0], measured=found[-1])
    drifted = calibration.with_drift(sample, reference_s).measured
    assert drifted.own_drift is not None
    assert drifted.own_drift.prefill_slowdown == pytest.approx(1.6)
    assert drifted.settled("ttft_p50") == pytest.approx(1e-4, rel=0.03)


def test_a_space_draws_the_models_that_it_is_calibrated_with(monkeypatch) -> None:
    asked: list[int] = []

    def own(count: int, seed: int) -> list[object]:
        asked.append(count)
        return random_classifiers(count, seed=7)

    monkeypatch.setattr(calibration, "measure_models", lambda designs, timed, **_: designs)
    monkeypatch.setattr(calibration, "fit_profile", lambda blank, designs: designs)
    monkeypatch.setattr(calibration, "fit_terms", lambda timed: ({}, {}))
    monkeypatch.setattr(calibration, "time_cases", lambda *_, **__: [])
    monkeypatch.setattr(calibration, "check_exporter", lambda runtime: None)
    used = calibration.calibrate(runtime="fake", seconds=50.0, kind="images", own=own)
    assert used == random_classifiers(asked[0], seed=7)
    rankers = calibration.calibrate(runtime="fake", seconds=50.0, kind="ranking", own=own)
    assert rankers[1::2] == random_classifiers(asked[1], seed=7)
    assert all(design.arch.stem.candidates == 1 for design in rankers[::2])

"""A search's calibration that was killed is continued from the run's folder, and is made only once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chipwise.design.run.budget_spec import BudgetSpec, allowance
from chipwise.design.run.spec import TargetSpec
from chipwise.design.targets import local
from chipwise.training.trainers.train_spec import TrainSpec
from support.machines import core_like

SPEC = SimpleNamespace(
    target=TargetSpec(),
    allowance=allowance(BudgetSpec(), TrainSpec()),
    space=SimpleNamespace(own=None, kind=SimpleNamespace(calibration="")),
)
SPACE = SimpleNamespace(drawn=None)


class Killed(Exception):
    pass


def test_what_was_measured_survives_a_kill(tmp_path, monkeypatch) -> None:
    folder = SimpleNamespace(profile=tmp_path / "profile.json", calibrating=tmp_path / "partial.jsonl")
    monkeypatch.setattr(local, "saved_profile", lambda runtime, threads: None)
    found = []

    def calibrate(*, partial, **how):
        found.append(partial.exists())
        if not partial.exists():
            partial.write_text("measured")
            raise Killed
        return core_like()

    monkeypatch.setattr(local, "calibrate", calibrate)
    assert local.least_calibration_s(SPEC, folder) == pytest.approx(0.7 * (9.0 + 12 * 1.6))
    with pytest.raises(Killed):
        local._calibrated(SPEC, SPACE, folder, str)
    assert local.least_calibration_s(SPEC, folder) == 0.0  # how much is left is not known
    local._calibrated(SPEC, SPACE, folder, str)
    assert folder.profile.exists()
    local._calibrated(SPEC, SPACE, folder, str)
    assert found == [False, True]

"""A search's calibration that was killed is continued from the run's folder, and is made only once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from chipwise.deploy.runtimes import RUNTIMES, installed_version
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


def new(room):
    """Files of a run that has not begun."""
    return {"profile": room / "new.json", "calibrating": room / "new.jsonl"}


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
    assert local.least_calibration_s(SPEC, folder) == pytest.approx(0.5 * (9.0 + 12 * 1.6))
    with pytest.raises(Killed):
        local._calibrated(SPEC, SPACE, folder, str)
    assert local.least_calibration_s(SPEC, folder) == 0.0  # how much is left is not known
    local._calibrated(SPEC, SPACE, folder, str)
    assert folder.profile.exists()
    local._calibrated(SPEC, SPACE, folder, str)
    assert found == [False, True]


def test_a_search_takes_an_earlier_profile_unless_its_models_are_its_own(tmp_path, monkeypatch) -> None:
    folder = SimpleNamespace(profile=tmp_path / "profile.json", calibrating=tmp_path / "partial.jsonl")
    asked, said = [], []
    monkeypatch.setattr(
        local, "saved_profile", lambda runtime, threads: asked.append((runtime, threads)) or core_like()
    )
    monkeypatch.setattr(local, "calibrate", lambda **how: pytest.fail("it was calibrated again"))
    monkeypatch.setattr(local, "installed_version", lambda runtime: core_like().runtime_version)
    assert local.least_calibration_s(SPEC, folder) == 0.0
    assert local._calibrated(SPEC, SPACE, folder, said.append) == core_like()
    assert folder.profile.exists()
    assert said == [f"by chipwise calibrate of {core_like().created[:10]}"]
    images = SimpleNamespace(own=None, kind=SimpleNamespace(calibration="images"))
    local.least_calibration_s(SimpleNamespace(**{**vars(SPEC), "space": images}), SimpleNamespace(**new(tmp_path)))
    assert asked[-1] == ("onnxruntime-images", 1)
    own = SimpleNamespace(**{**vars(SPEC), "space": SimpleNamespace(own=object(), kind=images.kind)})
    assert local.least_calibration_s(own, SimpleNamespace(**new(tmp_path))) > 0.0


def test_a_profile_of_another_version_of_the_runtime_is_not_taken(tmp_path, monkeypatch) -> None:
    folder = SimpleNamespace(**new(tmp_path))
    known = replace(core_like(), runtime="onnxruntime", runtime_version="1.0.0")
    monkeypatch.setattr(local, "saved_profile", lambda runtime, threads: known)
    monkeypatch.setattr(local, "calibrate", lambda **how: core_like())
    assert local.least_calibration_s(SPEC, folder) > 0.0
    assert local._calibrated(SPEC, SPACE, folder, str) == core_like()


def test_versions_of_installed_packages_are_those_that_the_runtimes_report() -> None:
    pytest.importorskip("onnxruntime")
    assert installed_version("onnxruntime") == RUNTIMES.load("onnxruntime")().version()
    assert installed_version("fake") is None
    assert installed_version("executorch") is None  # its version is that of a package in another environment

"""A calibration that was killed after its nodes were timed continues with their rates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from chipwise.run.budget_spec import BudgetSpec, allowance
from chipwise.run.spec import TargetSpec
from chipwise.targets import local
from chipwise.testing.machines import core_like
from chipwise.trainers.train_spec import TrainSpec

SPEC = SimpleNamespace(
    target=TargetSpec(),
    allowance=allowance(BudgetSpec(), TrainSpec()),
    space=SimpleNamespace(image=None, ranking=None, sound=None, own=None),
)
SPACE = SimpleNamespace(drawn=None)


class Killed(Exception):
    pass


def test_node_rates_survive_a_kill_and_go_when_the_profile_is_there(tmp_path, monkeypatch) -> None:
    folder = SimpleNamespace(profile=tmp_path / "profile.json", node_rates=tmp_path / "nodes.json")
    monkeypatch.setattr(local, "saved_profile", lambda runtime, threads: None)
    bases = []

    def calibrate(*, base, on_nodes, **how):
        bases.append(base)
        if base is None:
            on_nodes(replace(core_like(), checks={}))
            raise Killed
        return core_like()

    monkeypatch.setattr(local, "calibrate", calibrate)
    with pytest.raises(Killed):
        local._calibrated(SPEC, SPACE, folder, str)
    assert folder.node_rates.exists()
    local._calibrated(SPEC, SPACE, folder, str)
    assert bases[0] is None
    assert bases[1].terms == core_like().terms
    assert folder.profile.exists()
    assert not folder.node_rates.exists()

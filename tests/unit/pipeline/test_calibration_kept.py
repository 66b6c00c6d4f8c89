"""A calibration that was killed after its nodes were timed continues with their rates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from toy_run import SPEC

from chipwise.pipeline import pipeline
from chipwise.pipeline.pipeline import Search
from chipwise.testing.machines import core_like


class Killed(Exception):
    pass


def test_node_rates_survive_a_kill_and_go_when_the_profile_is_there(tmp_path, monkeypatch) -> None:
    search = object.__new__(Search)
    search.spec = SPEC
    search.folder = SimpleNamespace(profile=tmp_path / "profile.json", node_rates=tmp_path / "nodes.json")
    monkeypatch.setattr(Search, "_phase", lambda self, name: None)
    monkeypatch.setattr(pipeline, "saved_profile", lambda runtime, threads: None)
    bases = []

    def calibrate(*, base, on_nodes, **how):
        bases.append(base)
        if base is None:
            on_nodes(replace(core_like(), checks={}))
            raise Killed
        return core_like()

    monkeypatch.setattr(pipeline, "calibrate", calibrate)
    with pytest.raises(Killed):
        search._calibrate()
    assert search.folder.node_rates.exists()
    search._calibrate()
    assert bases[0] is None
    assert bases[1].terms == core_like().terms
    assert search.folder.profile.exists()
    assert not search.folder.node_rates.exists()

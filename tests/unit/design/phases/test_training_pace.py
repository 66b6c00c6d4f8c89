"""What a run knows of this machine's speed before it trains: measured once, for CPU time of this machine alone."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toy_run import SPACE, SPEC, metrics, two_bytes

from chipwise.design.phases import training_pace
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.screening import screen
from chipwise.design.run.budget_spec import BudgetSpec
from chipwise.training.laws.scaling import PACE

DATA = SimpleNamespace(recipe={}, data=lambda arch: SimpleNamespace(load=lambda: arch))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The architectures that were timed; each trains a quarter as fast as on the machine of ``PACE``."""
    found: list[Any] = []

    def timed(arch: Any, data: Any, recipe: Any, *, precision: str) -> float:
        assert data is arch
        found.append(arch)
        layers = arch.parameters() - arch.embedding_parameters()
        return float(PACE.tokens_per_s(layers, arch.outputs * arch.d_model)) / 4

    monkeypatch.setattr("chipwise.training.loop.pace.tokens_per_cpu_s", timed)
    return found


def study() -> Any:
    memory: dict[str, object] = {}
    return SimpleNamespace(memory=memory, remember=memory.update)


def test_a_machine_is_timed_once_in_a_run(asked, tmp_path) -> None:
    run, folder = study(), SimpleNamespace(path=tmp_path)
    assert training_pace.known_pace(run) == PACE
    for _ in range(2):
        training_pace.measure_pace(run, SPEC, folder, DATA)
    assert training_pace.known_pace(run).slowness == pytest.approx(4.0)
    assert len(asked) == 2
    assert asked[0].parameters() < asked[1].parameters()
    assert {arch.d_model for arch in asked} <= {*SPEC.space.d_model}


def test_tokens_need_no_pace(asked, tmp_path) -> None:
    run, spec = study(), dataclasses.replace(SPEC, budget=BudgetSpec(tokens="2M"))
    training_pace.measure_pace(run, spec, SimpleNamespace(path=tmp_path), DATA)
    assert training_pace.known_pace(run) == PACE
    assert not asked


def test_on_a_slow_machine_the_law_prefers_a_smaller_design() -> None:
    """Of the same CPU time a machine that takes a thousand times as long trains on a thousandth of the tokens."""
    small, large = (
        SPACE.canonical(np.array([[0 for _ in SPACE.genes]])),
        SPACE.canonical(np.array([[len(gene.values) - 1 for gene in SPACE.genes]])),
    )
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)

    def better(factor: float) -> bool:
        chooser = Chooser(
            SPACE, screened, metrics, SPEC.goals, SPEC.limits,
            final=240.0, bytes_per_token=two_bytes, pace=PACE.times(factor), seed=0,
        )  # fmt: skip
        return bool(chooser.law(small)[0] < chooser.law(large)[0])

    assert not better(1.0)
    assert better(1000.0)

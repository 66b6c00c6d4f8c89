"""Solvers and shifted times as choices of a space of denoisers: what they go with, and what they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_diffusion import SPACE

from chipwise.core.fields import build
from chipwise.design.phases.choosing import Chooser
from chipwise.errors import SpecError
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.tasks.diffusion.references import proportions

IMAGE: dict[str, Any] = {**SPACE["image"], "steps": [1, 2, 4], "solver": ["euler", "multistep"], "shift": [1, 2]}
SPACED = SearchSpace(build(SpaceSpec, {**SPACE, "image": IMAGE}))


def test_flows_of_several_steps_are_drawn_with_each_solver_and_shift() -> None:
    rows = SPACED.sample(200, np.random.default_rng(0))
    served = [(each.solver, each.shift) for each in (SPACED.design(row).arch.head for row in rows)]
    several = SPACED.steps(rows) > 1
    assert {served[i] for i in np.flatnonzero(~several)} == {("euler", 1.0)}
    every = {(solver, shift) for solver in ("euler", "multistep") for shift in (1.0, 2.0)}
    assert {served[i] for i in np.flatnonzero(several)} == every
    assert SPACED.passes(rows).tolist() == [SPACED.design(row).arch.head.steps for row in rows]
    assert any("4 steps multistep shift 2" in summary(SPACED.design(row)) for row in rows)
    assert "solver" not in SearchSpace(build(SpaceSpec, SPACE)).index, "spaces without it are what they were"


def test_multistep_counts_as_more_steps_of_euler_but_not_where_there_is_one() -> None:
    rows = SPACED.sample(200, np.random.default_rng(0))
    multistep = SPACED.values(rows, "solver") == "multistep"
    steps, equal = SPACED.steps(rows), SPACED.equal_steps(rows)
    assert np.array_equal(equal[~multistep], steps[~multistep])
    assert np.array_equal(equal[multistep & (steps == 1)], steps[multistep & (steps == 1)])
    assert (equal > steps)[multistep & (steps > 1)].all()


def test_all_are_weights_of_one_training() -> None:
    chooser = Chooser.__new__(Chooser)
    chooser.__dict__ |= {"_space": SPACED, "_limits": (), "_metrics": lambda rows: {"ttft_p50": np.zeros(len(rows))}}
    rows = SPACED.sample(100, np.random.default_rng(0))
    flow = rows[0]
    others = chooser.in_other_formats(flow.tolist())
    assert len(others) == 1 + 2 * 2 + 2 * 2 - 1  # of one step all are the same
    assert len({SPACED.design(row).arch.as_trained().digest for row in [*others, flow]}) == 1


def test_references_take_equal_steps_of_euler_where_they_can() -> None:
    assert {(choices["solver"], choices["shift"]) for choices in proportions(SPACED.spec)} == {("euler", 1.0)}
    image = {**SPACE["image"], "solver": ["multistep"], "shift": [3, 2]}
    found = proportions(build(SpaceSpec, {**SPACE, "image": image}))
    assert {(choices["solver"], choices["shift"]) for choices in found} == {("multistep", 2.0)}


@pytest.mark.parametrize("changes", [{"solver": ["multistep"]}, {"shift": [2]}])
def test_they_are_for_denoisers(changes: dict[str, Any]) -> None:
    image = {name: value for name, value in SPACE["image"].items() if name != "steps"}
    with pytest.raises(SpecError, match="only valid for denoisers"):
        build(SpaceSpec, {**SPACE, "image": {**image, **changes}})

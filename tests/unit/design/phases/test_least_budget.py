"""A budget that cannot hold a search is refused before anything is measured, with one that can."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from toy_run import SPEC

from chipwise.design.phases.run_budget import require_budget
from chipwise.design.run.budget_spec import BudgetSpec
from chipwise.errors import SpecError


def check(spent_s: float, ahead_s: float, **budget: str) -> None:
    spec = replace(SPEC, budget=BudgetSpec(**budget))
    require_budget(spec, spent_s=spent_s, ahead_s=ahead_s, trainings=2)


def test_what_is_left_must_hold_two_full_trainings_with_their_overhead() -> None:
    """Of 90 s: 5 + 4 for the end and 2 % of 90, 10.8 s; two trainings of 18 s take 1.3 times as long, 46.8 s."""
    check(32.0, 0.0, cpu="90 s")
    with pytest.raises(SpecError, match=r"^budget\.cpu: 1 min 30 s of CPU time is too little"):
        check(22.0, 11.0, cpu="90 s")


@pytest.mark.parametrize("budget", [{"cpu": "90 s"}, {"cpu": "60 s", "final": "20 s"}])
def test_what_is_advised_is_enough_and_not_far_from_it(budget) -> None:
    with pytest.raises(SpecError, match="give at least") as caught:
        check(40.0, 10.0, **budget)
    minutes, seconds = re.search(r"give at least (?:(\d+) min)? ?(?:(\d+) s)?", str(caught.value)).groups()
    advised = 60 * int(minutes or 0) + int(seconds or 0)
    check(40.0, 10.0, **budget | {"cpu": f"{advised} s"})
    with pytest.raises(SpecError, match="too little"):
        check(40.0, 10.0, **budget | {"cpu": f"{0.85 * advised} s"})


def test_a_budget_of_trainings_alone_is_not_spent_by_a_calibration() -> None:
    check(1e6, 0.0, tokens="2M")

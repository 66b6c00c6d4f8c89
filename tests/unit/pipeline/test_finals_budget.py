"""What is left for measuring the finalists: of a CPU budget its reserve, of any other a minute of this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from toy_run import SPEC

from chipwise.core.files import build
from chipwise.pipeline.pipeline import FINALS_S, MEASURING_S, MEASURING_SHARE, Search
from chipwise.run.budget_spec import BudgetSpec
from chipwise.run.spec import RunSpec


def search_of(budget: BudgetSpec, spent: dict[str, float]) -> Search:
    search = object.__new__(Search)
    search.spec = build(RunSpec, {**vars_of(SPEC), "budget": budget})
    search.ledger = SimpleNamespace(settle=lambda: spent, total_s=sum(spent.values()))
    search._reserve_s = 0.0
    return search


def vars_of(spec: RunSpec) -> dict:
    return {"name": spec.name, "workload": spec.workload, "space": spec.space, "data": spec.data}


def test_a_budget_of_tokens_leaves_a_minute() -> None:
    search = search_of(BudgetSpec(tokens="2M"), {"first trainings": 500.0, "measuring the finalists": 12.0})
    assert search._left_for_finals_s == FINALS_S - 12.0


def test_a_cpu_budget_leaves_what_was_set_aside() -> None:
    search = search_of(BudgetSpec(cpu="100 s"), {"first trainings": 90.0})
    assert search._left_for_finals_s == pytest.approx(10.0 + MEASURING_S + MEASURING_SHARE * 100.0)

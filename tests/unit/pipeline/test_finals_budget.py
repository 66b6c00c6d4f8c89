"""What is left for measuring the finalists: of a CPU budget its reserve, of any other a minute of this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from toy_run import SPEC

from chipwise.core.files import build
from chipwise.pipeline import pipeline
from chipwise.pipeline.least_budget import MEASURING_S, MEASURING_SHARE
from chipwise.pipeline.pipeline import FINALS_S, Search
from chipwise.run.budget_spec import BudgetSpec
from chipwise.run.spec import RunSpec


def search_of(budget: BudgetSpec, spent: dict[str, float]) -> Search:
    search = object.__new__(Search)
    search.spec = build(RunSpec, {**vars_of(SPEC), "budget": budget})
    search.ledger = SimpleNamespace(settle=lambda: spent, total_s=sum(spent.values()))
    search._reserve_s, search.target = 0.0, None
    return search


def vars_of(spec: RunSpec) -> dict:
    return {"name": spec.name, "workload": spec.workload, "space": spec.space, "data": spec.data}


def test_a_budget_of_tokens_leaves_a_minute() -> None:
    search = search_of(BudgetSpec(tokens="2M"), {"first trainings": 500.0, "measuring the finalists": 12.0})
    assert search._left_for_finals_s == FINALS_S - 12.0


def test_a_cpu_budget_leaves_what_was_set_aside() -> None:
    search = search_of(BudgetSpec(cpu="100 s"), {"first trainings": 90.0})
    assert search._left_for_finals_s == pytest.approx(10.0 + MEASURING_S + MEASURING_SHARE * 100.0)


def test_trainings_leave_a_cpu_budget_what_the_end_of_the_run_takes(monkeypatch) -> None:
    """Of 100 s: 5 + 4 % for measuring the finalists, 4 + 1 % for test text and report, 7 s for a task: 21 s."""
    monkeypatch.setattr(pipeline.task_evaluation, "planned_cpu_s", lambda tasks: 7.0 * len(tasks))
    search = search_of(BudgetSpec(cpu="100 s"), {"first trainings": 30.0})
    assert search._set_aside_s({}) == pytest.approx(9.0 + 5.0)
    search._reserve_s = search._set_aside_s({"organ": None})
    assert search._reserve_s == pytest.approx(21.0)
    assert search._left == pytest.approx(100.0 - 30.0 - 21.0)
    assert search_of(BudgetSpec(tokens="2M"), {})._set_aside_s({"organ": None}) == 0.0

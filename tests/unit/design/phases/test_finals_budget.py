"""What is left for measuring the finalists: of a CPU budget its reserve, of any other a minute of this machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from toy_run import MEASURED, SPEC

from chipwise.core.files import build
from chipwise.design.phases import run_budget
from chipwise.design.phases.run_budget import FINALS_S, RunBudget
from chipwise.design.run.budget_spec import BudgetSpec
from chipwise.design.run.spec import RunSpec


def budget_of(budget: BudgetSpec, spent: dict[str, float], tasks: dict[str, None]) -> RunBudget:
    spec = build(RunSpec, {**vars_of(SPEC), "budget": budget})
    trials = SimpleNamespace(all=lambda: [])
    found = RunBudget(spec, trials, SimpleNamespace(settle=lambda: spent, total_s=sum(spent.values())))
    found.set_aside(None, tasks)
    return found


def vars_of(spec: RunSpec) -> dict:
    return {"name": spec.name, "workload": spec.workload, "space": spec.space, "data": spec.data}


def test_a_budget_of_tokens_leaves_a_minute() -> None:
    found = budget_of(BudgetSpec(tokens="2M"), {"first trainings": 500.0, "measuring the finalists": 12.0}, {})
    assert found.left_for_finals_s == FINALS_S - 12.0


def test_a_cpu_budget_leaves_what_was_set_aside() -> None:
    """Of the 10 s that are left, 4 s and half a per cent of 100 s are for test text and report."""
    found = budget_of(BudgetSpec(cpu="100 s"), {"first trainings": 90.0}, {})
    assert found.left_for_finals_s == pytest.approx(10.0 - 4.5)


@pytest.mark.parametrize(
    ("formats", "budget", "kept_s"),
    [
        (["int4"], {"cpu": "100 s"}, 5.0),
        (["int8"], {"cpu": "100 s"}, 0.0),
        (["int4", "int8"], {"cpu": "100 s"}, 0.0),  # int8 wins unless int4 loses almost nothing
        (["int4"], {"tokens": "2M"}, 0.0),
    ],
)
def test_a_twentieth_is_kept_to_round_a_design_that_only_int4_brings_within_the_limits(
    formats: list[str], budget: dict[str, str], kept_s: float
) -> None:
    forms = [SimpleNamespace(formats=SimpleNamespace(all=("fp32", weights))) for weights in formats]
    found = budget_of(BudgetSpec(**budget), {}, {})
    assert found.kept_for(forms, MEASURED) == pytest.approx(kept_s)
    assert found.kept_for(forms, None) == 0.0


def test_trainings_leave_a_cpu_budget_what_the_end_of_the_run_takes(monkeypatch) -> None:
    """Of 100 s: 5 + 1.5 % for measuring the only finalist, 4 + 0.5 % for test text and report, 7 s for a task."""
    monkeypatch.setattr(run_budget.task_evaluation, "planned_cpu_s", lambda tasks: 7.0 * len(tasks))
    spent = {"first trainings": 30.0}
    assert budget_of(BudgetSpec(cpu="100 s"), spent, {}).left == pytest.approx(100.0 - 30.0 - 11.0)
    assert budget_of(BudgetSpec(cpu="100 s"), spent, {"organ": None}).left == pytest.approx(100.0 - 30.0 - 18.0)
    assert budget_of(BudgetSpec(tokens="2M"), spent, {"organ": None}).left == 2e6

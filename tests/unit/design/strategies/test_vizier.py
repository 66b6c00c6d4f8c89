"""Vizier's designers as strategies, with a fake package: inputs and outputs.

The stand-in has the names and signatures of google-vizier 0.1.24 that the strategy uses. Where the package itself is
installed, the last class runs the suite on its own NSGA-II.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from chipwise.api.testing.strategy_suite import StrategySuite, toy_objectives, toy_problem, toy_violations
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Goal, Problem
from chipwise.errors import InputError, MissingExtra


@dataclass
class Root:
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add_int_param(self, name: str, min_value: int, max_value: int) -> None:
        assert min_value < max_value, "Vizier refuses a parameter without a choice"
        self.ranges[name] = (min_value, max_value)


class ProblemStatement:
    def __init__(self) -> None:
        self.search_space = types.SimpleNamespace(root=Root())
        self.metric_information: list[Any] = []


@dataclass
class Measurement:
    metrics: dict[str, float]


@dataclass
class Trial:
    id: int
    parameters: dict[str, int]
    final: Measurement | None = None
    reason: str | None = None

    def complete(self, measurement: Measurement, *, infeasibility_reason: str | None = None) -> None:
        self.final, self.reason = measurement, infeasibility_reason


class Designer:
    """Proposes random rows and records all results."""

    made: list[Designer] = []  # noqa: RUF012

    def __init__(self, problem: ProblemStatement, *, seed: int) -> None:
        self.problem, self.rng = problem, np.random.default_rng(seed)
        self.completed: list[Trial] = []
        self.active: list[Trial] = []
        Designer.made.append(self)

    def update(self, completed: list[Trial], active: list[Trial]) -> None:
        self.completed += completed
        self.active = active

    def suggest(self, count: int) -> list[Any]:
        drawn = [
            {name: float(self.rng.integers(low, high + 1)) for name, (low, high) in self.ranges.items()}
            for _ in range(count)
        ]
        return [types.SimpleNamespace(parameters=types.SimpleNamespace(get_value=each.__getitem__)) for each in drawn]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return self.problem.search_space.root.ranges


@pytest.fixture
def stand_in(monkeypatch) -> type[Designer]:
    """The package ``vizier`` with random designers, and a ``jax`` that makes keys of seeds."""
    Designer.made = []
    designers = types.ModuleType("vizier.algorithms.designers")
    designers.NSGA2Designer = designers.EagleStrategyDesigner = Designer  # type: ignore[attr-defined]
    designers.VizierGPUCBPEBandit = lambda problem, *, rng: Designer(problem, seed=rng)  # type: ignore[attr-defined]
    algorithms = types.ModuleType("vizier.algorithms")
    algorithms.CompletedTrials = algorithms.ActiveTrials = list  # type: ignore[attr-defined]
    algorithms.designers = designers  # type: ignore[attr-defined]
    named = types.ModuleType("vizier.pyvizier")
    named.ProblemStatement, named.Trial, named.Measurement = ProblemStatement, Trial, Measurement  # type: ignore[attr-defined]
    named.MetricInformation = types.SimpleNamespace  # type: ignore[attr-defined]
    named.ObjectiveMetricGoal = types.SimpleNamespace(MINIMIZE="minimize")  # type: ignore[attr-defined]
    vizier = types.ModuleType("vizier")
    vizier.algorithms, vizier.pyvizier = algorithms, named  # type: ignore[attr-defined]
    jax = types.ModuleType("jax")
    jax.random = types.SimpleNamespace(PRNGKey=lambda seed: seed)  # type: ignore[attr-defined]
    for module in (vizier, algorithms, designers, named, jax):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Designer


@pytest.mark.usefixtures("stand_in")
class TestContract(StrategySuite):
    name = "vizier"


def test_the_designer_sees_the_problem_as_it_is(stand_in: type[Designer]) -> None:
    """Variables with a choice as whole numbers, all objectives to be minimised."""
    problem = Problem(
        cardinalities=np.array([4, 1, 2]), goals=(Goal(name="loss"), Goal(name="gain", direction="maximize"))
    )
    make_strategy("vizier", problem, seed=0)
    (made,) = stand_in.made
    assert made.ranges == {"x0": (0, 3), "x2": (0, 1)}
    assert [(item.name, item.goal) for item in made.problem.metric_information] == [
        ("y0.loss", "minimize"),
        ("y1.gain", "minimize"),
    ]


def test_the_designer_learns_what_ended_and_what_runs(stand_in: type[Designer]) -> None:
    """Each trial once, values to be minimised, broken limits as infeasible, failures not at all, the rest as active."""
    problem = toy_problem(expensive_limit=True, limit=0.5)
    strategy = make_strategy("vizier", problem, seed=1)
    rows = strategy.ask(4)
    excess = toy_violations(rows[:2], limit=0.5)
    excess[0] = 1.0
    strategy.tell(rows[:2], toy_objectives(rows[:2]), excess)
    strategy.tell(rows[2:3], None)
    strategy.ask(1)
    (made,) = stand_in.made
    assert [tuple(trial.parameters.values()) for trial in made.completed] == [tuple(row) for row in rows[:2]]
    loss, cost = toy_objectives(rows[:1])[0]
    assert made.completed[0].final == Measurement(metrics={"y0.loss": loss, "y1.cost": cost})
    assert [trial.reason is None for trial in made.completed] == [False, bool(excess[1, 0] <= 0)]
    assert [tuple(trial.parameters.values()) for trial in made.active] == [tuple(rows[3])]
    strategy.ask(1)
    assert len(made.completed) == 2
    assert len({trial.id for trial in (*made.completed, *made.active)}) == len(made.completed) + len(made.active)


@pytest.mark.usefixtures("stand_in")
def test_a_designer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="eagle takes one objective"):
        make_strategy("vizier", toy_problem(), seed=0, designer="eagle")
    with pytest.raises(InputError, match="designer: must be one of gp, eagle, nsga2, not 'best'"):
        make_strategy("vizier", toy_problem(), seed=0, designer="best")
    one = Problem(cardinalities=np.array([3, 3]), goals=(Goal(name="loss"),))
    assert len(make_strategy("vizier", one, seed=0, designer="eagle").ask(9)) == 9


def test_without_the_package_one_line_names_the_extra(monkeypatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "vizier":
            raise ModuleNotFoundError(name, name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtra, match=r"google-vizier is not installed; .*'chipwise\[vizier\]'"):
        make_strategy("vizier", toy_problem(), seed=0)


@pytest.mark.skipif(importlib.util.find_spec("vizier") is None, reason="needs google-vizier[jax]")
class TestItsOwnNsga2(StrategySuite):
    name = "vizier"
    options = {"designer": "nsga2"}  # noqa: RUF012

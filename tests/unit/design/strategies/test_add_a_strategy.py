"""The example of docs/how-to/add-a-strategy.md passes the suite; failures of other strategies are explained."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from chipwise.api.testing.strategy_suite import StrategySuite
from chipwise.design.strategies.algorithms.random_search import RandomSearch

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "add-a-strategy.md"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    path = tmp_path_factory.mktemp("guide") / "local_search.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("local_search", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LocalSearch


@pytest.mark.parametrize("check", [name for name in dir(StrategySuite) if name.startswith("test_")])
def test_the_example_of_the_guide_passes(example, check) -> None:
    class Suite(StrategySuite):
        def make(self, problem, seed):
            return example(problem, seed=seed)

    getattr(Suite(), check)()


class Forgetful(RandomSearch):
    """Proposes the first row for ever."""

    def ask(self, count):
        return np.zeros((count, len(self.problem.cardinalities)), np.int64)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("test_rows_are_in_the_space_and_never_repeat", "39 of 40 rows were proposed twice: History.is_new"),
        ("test_another_seed_asks_other_rows", "the seed is ignored"),
        ("test_expensive_limits_and_infeasible_trials", "none of 40 rows broke a limit that only trials reveal"),
    ],
)
def test_a_failure_says_what_to_do(check, message) -> None:
    class Suite(StrategySuite):
        def make(self, problem, seed):
            return Forgetful(problem, seed=seed)

    with pytest.raises(AssertionError, match=message):
        getattr(Suite(), check)()

"""What a problem and the loop are given is checked by type and range, with the field named."""

from __future__ import annotations

import evaluations
import numpy as np
import pytest

from chipwise.design.strategies.optimise import optimise
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from chipwise.errors import InputError, UnknownName

LOSS = (Goal(name="loss"),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Goal(name=3), "name: must be text"),
        (lambda: Goal(name="loss", direction="down"), "direction: 'down' is not an accepted value"),
        (lambda: Goal(name="loss", free="yes"), "free: must be true or false"),
        (lambda: Limit(name="size", penalty="10 %"), "penalty: must be a number"),
        (lambda: Limit(name="size", penalty=-1.0), "size: a penalty must be above 0, not -1"),
        (lambda: Limit(name="size", penalty=float("nan")), "penalty: must be a finite number"),
        (lambda: Problem(cardinalities="abc", goals=LOSS), "cardinalities: .*not 'abc'"),
        (lambda: Problem(cardinalities=[2.5], goals=LOSS), r"cardinalities: .*not \[2.5\]"),
        (lambda: Problem(cardinalities=[2, 0], goals=LOSS), r"cardinalities: .*not \[2, 0\]"),
        (lambda: Problem(cardinalities=3, goals=LOSS), "cardinalities: .*not 3"),
        (lambda: Problem(cardinalities=[2], goals="loss"), "goals must be a tuple of Goal objects, not text"),
        (lambda: Problem(cardinalities=[2], goals=["loss"]), "goals must be a tuple of Goal objects, not a list"),
        (lambda: Problem(cardinalities=[2], goals=LOSS, limits=LOSS), "limits must be a tuple of Limit"),
        (lambda: Problem(cardinalities=[2], goals=LOSS, prior=3), "prior must be a function of rows"),
        (lambda: Problem(cardinalities=[2], goals=()), "at least one objective"),
    ],
)
def test_wrong_types_are_named(make, message) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_lists_and_whole_floats_are_taken() -> None:
    problem = Problem(cardinalities=[2.0, 3], goals=list(LOSS))
    assert problem.cardinalities.dtype == np.int64
    assert problem.goals == LOSS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": "p"}, "problem must be a Problem, not text"),
        ({"evaluate": 3}, "evaluate must be a function that takes one row, not a whole number"),
        ({"evaluations": "10"}, "evaluations: must be a whole number, not text"),
        ({"evaluations": 0}, "evaluations: must be at least 1, not 0"),
        ({"batch": 0.5}, "batch: must be a whole number"),
        ({"workers": 0}, "workers: must be at least 1, not 0"),
        ({"workers": 100_000}, "workers: must be at most 1,024, not 100000"),
        ({"seed": -1}, "seed: must be at least 0, not -1"),
        ({"timeout_s": float("nan")}, "timeout_s: must be a finite number"),
        ({"timeout_s": 0.0}, "timeout_s: must be above 0"),
    ],
)
def test_the_loop_names_the_argument(changes, message) -> None:
    given = {"problem": evaluations.toy_problem(), "evaluate": evaluations.toy, "evaluations": 2, "strategy": "random"}
    given |= changes
    with pytest.raises(InputError, match=message):
        optimise(given.pop("problem"), given.pop("evaluate"), **given)


def test_an_unknown_strategy_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'evolution'"):
        optimise(evaluations.toy_problem(), evaluations.toy, evaluations=2, strategy="evolutoin")


def test_what_is_maximised_changes_its_sign() -> None:
    problem = Problem(cardinalities=[2], goals=(Goal(name="loss"), Goal(name="speed", direction="maximize")))
    np.testing.assert_array_equal(problem.to_minimise([[3.0, 5.0]]), [[3.0, -5.0]])

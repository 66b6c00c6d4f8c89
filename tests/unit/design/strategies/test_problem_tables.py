"""Tables of measured architectures as problems: what a search finds is what the table holds."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.optimise import optimise
from chipwise.design.strategies.pareto import non_dominated
from chipwise.design.strategies.tables import problem_from_table
from chipwise.errors import InputError, SpecError

OPERATIONS = ("conv", "none", "skip")


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def nas_bench(tmp_path) -> Path:
    """27 cells of three operations, as NAS-Bench-201 writes them; a convolution adds 3 ms and 2 points."""
    lines = ["arch_str,accuracy,raspi4_latency_ms"]
    for ops in itertools.product(OPERATIONS, repeat=3):
        cell = f"|{ops[0]}~0|+|{ops[1]}~0|{ops[2]}~1|"
        convs = sum(op == "conv" for op in ops)
        lines.append(f"{cell},{70 + 2 * convs - ops.count('none')},{1 + 3 * convs + 0.1 * ops.count('skip'):g}")
    return write(tmp_path, lines)


def test_a_listed_architecture_becomes_one_variable_an_entry(nas_bench: Path) -> None:
    table = problem_from_table(
        nas_bench, choices=["arch_str"], objectives={"accuracy": "maximize", "raspi4_latency_ms": "minimize"}
    )
    assert table.problem.cardinalities.tolist() == [3, 3, 3]
    assert table.problem.kinds == ("arch_str", "arch_str", "arch_str")
    assert list(table.values) == ["arch_str[0]", "arch_str[1]", "arch_str[2]"]
    row = np.array([0, 1, 2])
    assert list(table.choices(row).values()) == ["conv~0", "none~0", "skip~1"]
    assert table.evaluate(row).objectives == pytest.approx([70 + 2 - 1, 1 + 3 + 0.1])


@pytest.mark.parametrize("strategy", ["auto", "evolution", "random"])
def test_a_search_of_the_whole_table_finds_its_front(nas_bench: Path, strategy: str) -> None:
    """27 evaluations are all of it, so the front is that of the table, by brute force."""
    table = problem_from_table(
        nas_bench,
        choices=["arch_str"],
        objectives={"accuracy": "maximize", "raspi4_latency_ms": "minimize"},
        limits={"raspi4_latency_ms": "<= 7.15"},
        free=["raspi4_latency_ms"],
    )
    allowed = np.flatnonzero(table.objectives[:, 1] <= 7.15)
    best = allowed[non_dominated(table.problem.to_minimise(table.objectives[allowed]))]
    found = optimise(table.problem, table.evaluate, evaluations=len(allowed), strategy=strategy, seed=1)
    assert len(found.rows) == len(allowed)  # the others break a limit that needs no evaluation
    assert {tuple(row) for row in found.rows[list(found.front)]} == {tuple(row) for row in table.rows[best]}


def test_a_free_latency_is_known_before_any_evaluation(nas_bench: Path) -> None:
    table = problem_from_table(
        nas_bench,
        choices=["arch_str"],
        objectives={"accuracy": "maximize"},
        limits={"raspi4_latency_ms": "<= 4"},
        free=["raspi4_latency_ms"],
    )
    costs, excess = table.problem.price(np.array([[0, 0, 0], [1, 1, 1]]))
    assert costs.shape == (2, 0)
    assert excess[:, 0] == pytest.approx([10 / 4 - 1, 1 / 4 - 1])
    rows = make_strategy("random", table.problem, seed=0).ask(11)  # 8 without a convolution, 3 with one and no skip
    assert len(rows) == 11
    assert all(table.evaluate(row).violations[0] <= 0 for row in rows)


def test_lower_limits_are_mirrored(nas_bench: Path) -> None:
    table = problem_from_table(
        nas_bench, choices=["arch_str"], objectives=["raspi4_latency_ms"], limits={"accuracy": ">= 72"}
    )
    assert table.evaluate(np.array([0, 0, 0])).violations == pytest.approx([(72 - 76) / 72])
    assert table.evaluate(np.array([1, 1, 1])).violations == pytest.approx([(72 - 67) / 72])


def test_columns_and_lists_of_unequal_length(tmp_path) -> None:
    """Once-for-All's way: depths in a column each, kernels in one list that is as long as the network is deep."""
    path = write(
        tmp_path,
        [
            "d1,d2,ks,resolution,top1,latency",
            '2,2,"[3, 5]",128,70.1,10',
            '2,3,"[3, 5, 7]",160,72.5,14',
            '3,3,"[3, 3, 7]",224,73.0,19',
        ],
    )
    table = problem_from_table(
        path, choices=["d1", "d2", "ks", "resolution"], objectives={"top1": "maximize", "latency": "minimize"}
    )
    assert table.values["d1"] == (2.0, 3.0)
    assert table.values["ks[2]"] == (7.0, "-")
    assert table.values["resolution"] == (128.0, 160.0, 224.0)
    assert table.problem.kinds == ("d", "d", "ks", "ks", "ks", "resolution")
    assert [table.number(row) for row in table.rows] == [0, 1, 2]


def test_what_was_not_measured_stands_for_what_is_most_like_it(tmp_path) -> None:
    """(2, 0) differs from (0, 0) and from (2, 1) in one choice each: the first of the table counts."""
    path = write(tmp_path, ["a,b,loss", "0,0,5", "1,1,3", "2,1,1"])
    table = problem_from_table(path, choices=["a", "b"], objectives=["loss"])
    asked = np.array([[2, 0], [1, 0], [1, 1], [0, 1]])
    assert [table.number(row) for row in asked] == [0, 0, 1, 0]
    assert table.problem.canonicalise(asked).tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    found = optimise(table.problem, table.evaluate, evaluations=20, strategy="random")
    assert sorted(found.objectives[:, 0]) == [1, 3, 5]  # each once, and nothing else


def test_equal_lines_count_once_and_contradicting_ones_are_refused(tmp_path) -> None:
    path = write(tmp_path, ["a,loss", "0,5", "1,3", "0,5"])
    assert len(problem_from_table(path, choices=["a"], objectives=["loss"]).rows) == 2
    path = write(tmp_path, ["a,loss", "0,5", "1,3", "0,6"])
    with pytest.raises(SpecError, match=r"line 4: holds the architecture of line 2 with different measurements"):
        problem_from_table(path, choices=["a"], objectives=["loss"])


def test_mistakes_name_line_and_column(tmp_path) -> None:
    path = write(tmp_path, ["a,b,loss", "0,x,5", "1,,nan"])
    with pytest.raises(SpecError, match=r"line 3, loss: must be a number, not 'nan'"):
        problem_from_table(path, choices=["a"], objectives=["loss"])
    with pytest.raises(SpecError, match=r"line 3, b: is empty"):
        problem_from_table(path, choices=["b"], objectives=["loss"])
    with pytest.raises(SpecError, match=r"has no column 'lose'.*did you mean 'loss'"):
        problem_from_table(path, choices=["a"], objectives=["lose"])
    wrong = [
        ({"choices": []}, "choices"),
        ({"choices": "a"}, "choices"),
        ({"objectives": []}, "objectives"),
        ({"objectives": {"loss": "up"}}, "minimize or maximize"),
        ({"limits": {"b": "5"}}, "limits: b: write <= or >="),
        ({"limits": {"b": "<= 0"}}, "other than 0"),
        ({"free": ["b"]}, "free: 'b' is neither an objective nor limited"),
        ({"choices": ["a", "loss"]}, "loss is named twice"),
    ]
    good = write(tmp_path, ["a,b,loss", "0,1,5", "1,2,3"])
    for changes, message in wrong:
        with pytest.raises(InputError, match=message):
            problem_from_table(good, **{"choices": ["a"], "objectives": ["loss"], **changes})

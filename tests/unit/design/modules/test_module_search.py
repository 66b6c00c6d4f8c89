"""Searches over a user's own module: bad modules, limits, the winner that pencil arithmetic names, going on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.design.modules.module_search import ModuleSearch
from chipwise.errors import Infeasible, InputError, StudyError

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("optuna")

# n inputs, n hidden, one output: n·n + n + n + 1 parameters; train returns 1 / n, so the widest network is the best,
# and half of that if its weights were trained before.
MODULE = """
import torch

CHOICES = {"n": [2, 4, 8, 16], "bias": [True]}

def inputs():
    return (torch.zeros(1, 4),)

def build(choices):
    n = choices["n"]
    return torch.nn.Sequential(torch.nn.Linear(4, n), torch.nn.ReLU(), torch.nn.Linear(n, 1))

def train(module, cpu_s):
    with open(__file__ + ".log", "a") as log:
        log.write(f"{module[0].out_features} {cpu_s}\\n")
    if module[0].out_features == 4:
        raise RuntimeError("four is refused")
    trained = bool((module[0].bias == 7).all())
    torch.nn.init.constant_(module[0].bias, 7)
    return 1 / module[0].out_features / (2 if trained else 1)

def test(module):
    return 0.5
"""


def _written(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("CHOICES", "OTHERS", "mine.py: define CHOICES"),
        ("[2, 4, 8, 16]", "[2, 2]", r"CHOICES\['n'\] lists a value twice"),
        ("[2, 4, 8, 16]", "[]", r"CHOICES\['n'\] must list 1 to 1,000 values, not \[\]"),
        ("[2, 4, 8, 16]", "[None]", "values must be numbers, strings, True or False"),
        ("def train", "def learn", r"define train\(module, cpu_s\)"),
        ("import torch", "import torch\nprint(undefined)", "mine.py:3: NameError: name 'undefined' is not defined"),
    ],
)
def test_a_module_that_lacks_something_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = _written(tmp_path, MODULE.replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        chipwise.search_module(file, parameters="<= 100", out=tmp_path / "run")


def test_a_missing_file_and_a_missing_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.py: there is no such file"):
        chipwise.search_module(tmp_path / "none.py", parameters="<= 100", out=tmp_path / "run")
    with pytest.raises(InputError, match="give a limit"):
        chipwise.search_module(_written(tmp_path, MODULE))


def test_the_winner_is_the_best_network_within_the_limit_and_a_second_call_trains_nothing_more(tmp_path: Path) -> None:
    file = _written(tmp_path, MODULE)
    limits = {"parameters": "<= 60", "cpu": "60 s", "out": tmp_path / "run"}
    found = chipwise.search_module(file, **limits)
    assert found.choices == {"n": 8, "bias": True}  # 4·8 + 8 + 8 + 1 = 49 parameters; 16 would have 97
    assert found.measured["parameters"] == 49
    assert found.loss == 1 / 8 / 2  # the long training goes on from the short one's weights
    assert found.test == 0.5
    assert found.priced == 4
    assert found.failed == 1  # the network of four, which could not be trained
    assert {path.name for path in (tmp_path / "run" / "winner").iterdir()} >= {"model.onnx", "model.safetensors"}
    trained = (tmp_path / "mine.py.log").read_text()
    again = chipwise.search_module(file, **limits)
    assert again == found
    assert (tmp_path / "mine.py.log").read_text() == trained


def test_a_tenth_of_the_networks_within_the_limits_the_largest_by_both_costs_is_trained_first(tmp_path: Path) -> None:
    search = ModuleSearch(_written(tmp_path, MODULE), (), cpu_s=60.0, folder=tmp_path / "run")
    grid = np.stack(np.meshgrid(range(20), range(20)), -1).reshape(-1, 2)

    class Known:
        def costs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
            """A microsecond, and a parameter, for each step along an axis."""
            return {"ttft_p50": 1e-6 * (1 + rows[:, 0]), "parameters": 1.0 + rows[:, 1]}

    search._predictor = Known()  # type: ignore[assignment]
    chosen = grid[search._smaller(grid)(grid) <= 0]
    assert len(chosen) == pytest.approx(40, abs=2)
    assert [19, 19] in chosen.tolist()
    assert chosen.sum(axis=1).min() > 24  # of 38
    assert (search._smaller(grid[:10])(grid[:10]) <= 0).all()  # of few networks, all


def test_limits_that_no_network_keeps_name_the_closest(tmp_path: Path) -> None:
    file = _written(tmp_path, MODULE)
    with pytest.raises(Infeasible, match=r"predicted to meet parameters <= 5; the closest .* has 13: .*'n': 2"):
        chipwise.search_module(file, parameters="<= 5", cpu="60 s", out=tmp_path / "run")
    with pytest.raises(StudyError, match="contains a search with different limits"):
        chipwise.search_module(file, parameters="<= 50", cpu="60 s", out=tmp_path / "run")

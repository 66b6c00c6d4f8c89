"""The benchmark of designs picked by law: regrets by hand, and a whole run on trainings of a known law."""

import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from chipwise.training.laws.laws import shipped
from chipwise.training.laws.shapes import Shapes

PATH = Path(__file__).parents[2] / "benchmarks" / "design_regret.py"


@pytest.fixture(scope="module")
def benchmark():
    found = importlib.util.spec_from_file_location("design_regret", PATH)
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PATH.parent))
        found.loader.exec_module(module)
    return module


def test_a_regret_by_hand(benchmark) -> None:
    times, truth = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 2.2])
    rows = benchmark.questions("chip", times, truth, {"regret": np.array([3.0, 2.5, 2.4])})
    assert len(rows) == 10
    assert float(rows[0]["regret"]) == 0  # of the first two the second is picked, and best
    assert float(rows[-1]["regret"]) == pytest.approx(2.2 / 2.0 - 1)  # of all three the third is picked


def test_tau_near_a_size_by_hand(benchmark) -> None:
    tau, pairs = benchmark.near_tau(np.array([1.0, 2, 3]), np.array([2.0, 1, 9]), np.array([100.0, 110, 900]))
    assert (tau, pairs) == (-1, 1)


def test_a_folder_of_trainings_of_a_known_law(benchmark, tmp_path, monkeypatch, capsys) -> None:
    law = shipped()
    with (tmp_path / "made.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("width", "depth", "parameters", "tokens", "loss_nats"))
        for width, depth in ((256, 12), (256, 40), (512, 8), (512, 24), (768, 4), (1024, 12), (1024, 24), (1536, 8)):
            layers = 15 * depth * width**2
            shape = Shapes(least=layers, most=layers, width=width, depth=depth)
            for tokens in np.geomspace(1e10, 3e11, 15):
                nats = law.nats_per_token(shape, tokens)[0]
                writer.writerow((width, depth, layers + 2 * 50_304 * width, tokens, nats))
    monkeypatch.setattr(benchmark, "DEVICES", ("h100-sxm",))
    monkeypatch.setattr(benchmark, "coverage", lambda *_: (0.9, 0, 0.01))
    out = tmp_path / "out.csv"
    monkeypatch.setattr(sys, "argv", ["design_regret.py", "--quality", str(tmp_path), "--out", str(out)])
    benchmark.main()
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 10
    assert max(float(row["regret"]) for row in rows) == 0
    assert "8 shapes" in capsys.readouterr().out

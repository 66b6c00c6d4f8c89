"""benchmarks/gpu_day.py where there is no GPU: its list, its exit code, and the same code on the CPU with toy sizes."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def day(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu_day")
    yield module
    for name in ("gpu_day", "gpu_checks"):
        sys.modules.pop(name, None)


def run(day, monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", *map(str, arguments)])
    return day.main()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_list_names_every_check(day, monkeypatch, capsys) -> None:
    assert run(day, monkeypatch, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(day.CHECKS)
    assert {"kernels", "training-rates", "packing", "served", "vllm", "energy", "tests", "search"} <= set(day.CHECKS)


def test_without_a_gpu_it_says_so_in_one_line(day, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(day, monkeypatch, "--out", tmp_path / "out") == day.NO_GPU == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no CUDA device is found here" in said.err
    assert not (tmp_path / "out").exists()


def test_a_trial_writes_a_file_for_each_check_and_a_summary(day, monkeypatch, tmp_path) -> None:
    assert run(day, monkeypatch, "--fake", "--only", "kernels,tests", "--out", tmp_path) == 0
    (product, attention) = rows(tmp_path / "kernels.csv")
    assert float(product["measured_s"]) > 0
    assert float(product["low_s"]) <= float(product["latency_s"]) <= float(product["high_s"])
    assert attention["op"] == "attention"
    outcomes = {row["check"]: row["outcome"] for row in rows(tmp_path / "summary.csv")}
    assert outcomes == {"kernels": "done", "tests": "passed over"}
    run(day, monkeypatch, "--fake", "--only", "kernels", "--out", tmp_path)  # not measured again
    assert rows(tmp_path / "summary.csv")[0]["outcome"] == "there"


def test_a_check_that_fails_costs_no_other(day, monkeypatch, tmp_path) -> None:
    """One whose process ends with an error, and one that takes too long, are named in the summary."""
    monkeypatch.setattr(day, "__file__", str(tmp_path / "broken.py"))
    (tmp_path / "broken.py").write_text(
        "import sys, time\ntime.sleep(60 if 'packing' in sys.argv else 0)\nsys.exit('out of luck')\n"
    )
    monkeypatch.setattr(day, "LIMIT_S", 1.0)
    assert run(day, monkeypatch, "--fake", "--only", "devices,packing", "--out", tmp_path) == 1
    first, second = rows(tmp_path / "summary.csv")
    assert (first["outcome"], first["why"]) == ("failed", "out of luck")
    assert (second["outcome"], second["why"]) == ("failed", "took longer than 1 s")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_a_training_on_a_gpu_learns_what_one_on_a_core_learns(tmp_path) -> None:
    """The sums are in another order, so the last digits differ."""
    import dataclasses

    from chipwise.api.testing.trainer_suite import plain_result, toy_job

    job = toy_job(tmp_path)
    here = plain_result(job, tmp_path / "cpu")
    there = plain_result(dataclasses.replace(job, device="cuda:0"), tmp_path / "gpu")
    assert there["loss"] == pytest.approx(here["loss"], rel=0.01)

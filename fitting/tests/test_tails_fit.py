"""Tails of measured runs: what is read, what is fitted without a device, and coverage."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from chipwise.errors import InputError, SpecError
from chipwise_fitting.commands import validate
from chipwise_fitting.tails import TailRun, fit, fitted, read


def run(i: int, device: str, ratio: float, time: str = "itl", inputs: tuple[float, ...] = ()) -> TailRun:
    """A run with this ratio of P99 to P50."""
    return TailRun(
        row_id=f"{i}", table="t", kind="engine", time=time, device=device, model=f"m{i % 3}", median_s=1.0,
        p99_s=ratio, inputs=inputs,
    )  # fmt: skip


def test_a_law_without_noise_is_found() -> None:
    """ln ratio = 0.2 + 0.1 x."""
    runs = [run(i, "ab"[i % 2], math.exp(0.2 + 0.1 * i), inputs=(float(i),)) for i in range(20)]
    law = fitted(runs).laws["engine"]["itl"]
    assert law.terms == pytest.approx((0.2, 0.1))
    assert (law.below, law.above) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert law.inputs == ((0.0, 19.0),)


def test_the_interval_is_as_wide_as_devices_differ() -> None:
    """Two devices with ratios of e^0.2 and e^0.6: each is missed by 0.4 where the other was fitted."""
    runs = [run(i, "ab"[i % 2], math.exp(0.2 + 0.4 * (i % 2))) for i in range(40)]
    law = fitted(runs).laws["engine"]["itl"]
    assert law.terms == pytest.approx((0.4,))
    assert (law.below, law.above) == pytest.approx((-0.4, 0.4))


def test_few_runs_lean_on_the_others_and_none_take_all_means() -> None:
    runs = [run(i, "ab"[i % 2], math.exp(0.1 + 0.01 * (i % 5))) for i in range(20)]
    runs += [run(i, "ab"[i % 2], math.exp(0.9 + 0.01 * (i % 5)), "ttft") for i in range(20)]
    runs.append(run(0, "c", math.exp(0.3), "tpot"))
    found = fitted(runs)
    few, unknown = found.laws["engine"]["tpot"], found.laws["unmeasured"]["any"]
    assert few.log_ratio(()) == pytest.approx(0.3, abs=0.01)  # groups differ by much more than runs do
    assert unknown.log_ratio(()) == pytest.approx((0.12 + 0.92 + 0.3) / 3, abs=1e-3)
    assert unknown.above > few.above


def table(folder: Path) -> Path:
    """Gaps between tokens of three models on two cards."""
    (folder / "energy").mkdir()
    with (folder / "energy" / "gpqa.csv").open("w", newline="") as stream:
        names = ("row_id", "gpu_model", "model_id", "avg_output_len", "avg_batch_size", "median_itl_ms", "p99_itl_ms")
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        for i in range(24):
            measured = {"median_itl_ms": 10, "p99_itl_ms": 10 * (1.2 + 0.02 * (i % 7))}
            sizes = {"avg_output_len": 100 * (1 + i % 4), "avg_batch_size": 8 * (1 + i % 3)}
            names_of = {"row_id": i, "gpu_model": ("H100", "B200")[i % 2], "model_id": f"m{i % 5}"}
            writer.writerow({**names_of, **sizes, **measured})
    return folder


def test_a_device_is_predicted_by_a_fit_without_it(tmp_path: Path) -> None:
    found = validate("tails", table(tmp_path), tmp_path / "out.csv", leave_out="device")
    assert found[0].answered == 1.0
    assert next(each for each in found if each.subset.startswith("energy")).median < 0.1
    assert found[0].rival_median is not None
    with pytest.raises(InputError, match="leave out a device or a model, not a vendor"):
        validate("tails", tmp_path, tmp_path / "out.csv", leave_out="vendor")


def test_a_fit_is_written_as_it_is_read(tmp_path: Path) -> None:
    assert "engine, itl" in fit(table(tmp_path), tmp_path, progress=print)
    assert json.loads((tmp_path / "tails.json").read_text())["laws"]["engine"]["itl"]["runs"] == 24


def test_a_folder_without_tails_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no table with a P99"):
        read(tmp_path)

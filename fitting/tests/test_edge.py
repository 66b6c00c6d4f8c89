"""Fit and validation of runs of one user: a table whose truth is the law itself is learnt, with its device left out."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from chipwise import api
from chipwise.core.errors import InputError, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.kernels import local
from chipwise_fitting import edge
from chipwise_fitting.edge_runs import NEEDED, kernels_of, read_runs

MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-2-7b-hf")
DEVICES = ("rtx-3060", "rtx-3090", "rtx-4090", "rtx-4070")


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NEEDED, "device_class", "prompt_tokens", "gen_tokens"))
        writer.writeheader()
        writer.writerows(rows)
    return path


def row(device: str, model: str, quant: str, **more: object) -> dict[str, object]:
    return {
        "row_id": f"{device} {model} {quant}",
        "device": device,
        "device_class": "GeForce",
        "runtime": "llama.cpp",
        "model": model,
        "quant": quant,
        "prompt_tokens": 512,
        "gen_tokens": 128,
        **more,
    }


def rate(device: str, model: str, quant: str, share: float) -> float:
    """Tokens a second where ``share`` of the bandwidth is reached and a kernel costs 5 µs."""
    kernels = kernels_of(model, quant, datasheet.load(device), "gpu", "llama.cpp", 1, 64)
    return 1 / float(kernels.counts @ (kernels.memory_s / share + 5e-6))


def test_a_device_that_was_left_out_is_predicted_by_the_others(tmp_path: Path) -> None:
    rows = [
        row(device, model, quant, decode_tokens_per_s=rate(device, model, quant, 0.75))
        for device in DEVICES
        for model in MODELS
        for quant in ("Q4_K_M", "Q8_0", "F16")
    ]
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    assert len(runs) == len(rows)
    missed = edge.misses(runs, "device", edge.fitted(runs))
    assert np.median(np.abs(missed)) < 0.03
    assert np.max(np.abs(missed)) < 0.10


def test_the_derivatives_are_those_of_the_law(tmp_path: Path) -> None:
    table = write_table(tmp_path / "edge.csv", [row("rtx-3060", MODELS[0], "Q4_0", decode_tokens_per_s=100.0)])
    held = edge.design(read_runs(table))
    theta, step = np.full(len(held.names), 0.1), 1e-5
    _, slope = edge.predicted(held, theta)
    for i in range(len(held.names)):
        moved = theta.copy()
        moved[i] += step
        numeric = (edge.predicted(held, moved)[0] - edge.predicted(held, theta)[0]) / step
        assert slope.toarray()[0, i] == pytest.approx(numeric[0], abs=1e-4)


def test_half_widths_grow_as_less_is_known(tmp_path: Path) -> None:
    table = write_table(tmp_path / "edge.csv", [row("rtx-3060", MODELS[0], "Q4_0", decode_tokens_per_s=100.0)])
    (run,) = read_runs(table)
    runs = [dataclasses.replace(run, phase=phase) for phase in ("decode", "prefill") for _ in range(15)]
    found = {"seen": np.full(30, 0.3), "sibling": np.full(30, 0.1), "unseen": np.full(30, 0.5)}
    widths = edge.half_widths(runs, found)
    assert [widths[f"decode|{known}|nvidia client gpu"] for known in found] == [0.3, 0.3, 0.5]


def test_a_prompt_that_was_found_in_a_cache_teaches_nothing(tmp_path: Path) -> None:
    """4 million tokens a second of Llama-2-7B would be 50 EFLOP/s."""
    rows = [
        row("rtx-3060", MODELS[1], "Q4_0", prefill_tokens_per_s=2000.0),
        row("rtx-3060", MODELS[1], "Q4_0", prefill_tokens_per_s=4e6),
    ]
    fair, cached = read_runs(write_table(tmp_path / "edge.csv", rows))
    assert fair.plausible
    assert not cached.plausible


def test_a_smaller_bin_computes_with_fewer_cores(tmp_path: Path) -> None:
    rows = [
        row("apple-m2-max", MODELS[0], "Q4_0", decode_tokens_per_s=100.0, variant=variant)
        for variant in ("full", "binned-30c")
    ]
    table = tmp_path / "edge.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NEEDED, "device_class", "prompt_tokens", "gen_tokens", "variant"))
        writer.writeheader()
        writer.writerows(rows)
    whole, less = (run.kernels for run in read_runs(table))
    assert whole is not None
    assert less is not None
    assert less.compute_s == pytest.approx(whole.compute_s * 38 / 30)
    assert less.memory_s == pytest.approx(whole.memory_s)


def test_a_fit_without_a_device_is_near_where_the_derivatives_say(tmp_path: Path) -> None:
    rows = [
        row(device, model, quant, decode_tokens_per_s=rate(device, model, quant, 0.75))
        for device in DEVICES
        for model in MODELS
        for quant in ("Q4_K_M", "F16")
    ]
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    terms = edge.fitted(runs)
    left = np.array([run.device is None or run.device.name == "rtx-4090" for run in runs])
    held = edge.design(runs)
    theta = np.array([terms[name] for name in held.names])
    near = edge.Neighbourhood.of(held, theta).without(held.weight * ~left)
    _, found = edge.descend(held, held.weight * ~left, theta, steps=edge.STEPS)
    assert edge.predicted(held, near)[0] == pytest.approx(found, abs=0.01)


def test_validate_writes_rates_with_their_intervals(tmp_path: Path) -> None:
    known = row("rtx-3090", MODELS[1], "Q4_0", decode_tokens_per_s=150.0, prefill_tokens_per_s=4000.0)
    unknown = row("rtx-3090", "nobody/knows-this-model", "Q4_0", decode_tokens_per_s=150.0)
    table = write_table(tmp_path / "edge.csv", [known, unknown])
    scores = api.validate("edge", table, tmp_path / "out.csv")
    assert {score.subset: score.answered for score in scores} == {
        "all": pytest.approx(2 / 3),
        "GeForce, decode": 0.5,
        "GeForce, prefill": 1.0,
    }
    with (tmp_path / "out.csv").open() as file:
        (line,) = csv.DictReader(file)
    for column in ("decode_tokens_per_s", "prefill_tokens_per_s"):
        low, middle, high = (float(line[f"{end}{column}"]) for end in ("low_", "", "high_"))
        assert low < middle < high
        assert middle == pytest.approx(math.sqrt(low * high))
    width = local.shipped().halfwidth("decode", datasheet.load("rtx-3090"), "gpu")
    assert math.log(float(line["high_decode_tokens_per_s"]) / float(line["decode_tokens_per_s"])) == pytest.approx(
        width
    )


def test_a_table_that_is_none_and_a_kind_without_vendors_are_named(tmp_path: Path) -> None:
    table = tmp_path / "edge.csv"
    table.write_text("row_id,device\n")
    with pytest.raises(SpecError, match=r"edge\.csv: lacks the columns runtime, model, quant"):
        api.validate("edge", table, tmp_path / "out.csv")
    with pytest.raises(InputError, match="gemm has fits without a device or a family, not without a vendor"):
        api.validate("gemm", table, tmp_path / "out.csv", leave_out="vendor")
    with pytest.raises(InputError, match="edge is fitted to a table of measured runs"):
        api.fit(kinds=["edge"])

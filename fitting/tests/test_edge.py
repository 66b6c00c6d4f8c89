"""Fit and validation of runs of one user: a table whose truth is the law itself is learnt, with its device left out."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import InputError, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.kernels import local, local_engines
from chipwise_fitting import edge, edge_fit, edge_runs
from chipwise_fitting.commands import fit, validate
from chipwise_fitting.edge_rivals import by_efficiency
from chipwise_fitting.edge_runs import NEEDED, kernels_of, read_runs

MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-2-7b-hf")
DEVICES = ("rtx-3060", "rtx-3090", "rtx-4090", "rtx-4070")


def write_table(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NEEDED, "device_class", "prompt_tokens", "gen_tokens", "notes"))
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
    missed = edge_fit.misses(runs, "device", edge_fit.fitted(runs))
    assert np.median(np.abs(missed)) < 0.03
    assert np.max(np.abs(missed)) < 0.10


def test_the_derivatives_are_those_of_the_law(tmp_path: Path) -> None:
    table = write_table(tmp_path / "edge.csv", [row("rtx-3060", MODELS[0], "Q4_0", decode_tokens_per_s=100.0)])
    held = edge_fit.design(read_runs(table))
    theta, step = np.full(len(held.names), 0.1), 1e-5
    _, slope = edge_fit.predicted(held, theta)
    for i in range(len(held.names)):
        moved = theta.copy()
        moved[i] += step
        numeric = (edge_fit.predicted(held, moved)[0] - edge_fit.predicted(held, theta)[0]) / step
        assert slope[0, i] == pytest.approx(numeric[0], abs=1e-4)


def test_half_widths_grow_as_less_is_known(tmp_path: Path) -> None:
    table = write_table(tmp_path / "edge.csv", [row("rtx-3060", MODELS[0], "Q4_0", decode_tokens_per_s=100.0)])
    (run,) = read_runs(table)
    runs = [dataclasses.replace(run, phase=phase) for phase in ("decode", "prefill") for _ in range(15)]
    found = {"seen": np.full(30, 0.3), "sibling": np.full(30, 0.1), "unseen": np.full(30, 0.5)}
    widths = edge.half_widths(runs, found)
    assert [widths[f"decode|{known}|nvidia client gpu"] for known in local.DISTANCES] == [0.3, 0.3, 0.3, 0.5]


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


def test_a_fit_without_a_device_is_the_fit_to_the_others(tmp_path: Path) -> None:
    rows = [
        row(device, model, quant, decode_tokens_per_s=rate(device, model, quant, share))
        for device, share in zip(DEVICES, (0.75, 0.7, 0.5, 0.8), strict=True)
        for model in MODELS
        for quant in ("Q4_K_M", "F16")
    ]
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    out = [i for i, run in enumerate(runs) if run.chip == "rtx-4090"]
    others = [run for run in runs if run.chip != "rtx-4090"]
    found = edge_fit.misses(runs, "device", edge_fit.fitted(runs))[out]
    alone = edge_fit.seconds([runs[i] for i in out], edge_fit.fitted(others))
    assert found == pytest.approx(alone - np.log([runs[i].measured_s for i in out]), abs=0.02)


def test_a_rival_of_two_constants_learns_two_constants(tmp_path: Path) -> None:
    """Runs at 0.8 of the bandwidth with 100 µs a layer are met exactly; with the efficiency alone they are not."""
    rows = []
    for device in DEVICES:
        for model in MODELS:
            kernels = kernels_of(model, "Q8_0", datasheet.load(device), "gpu", "llama.cpp", 1, 64)
            rows.append(
                row(device, model, "Q8_0", decode_tokens_per_s=1 / (kernels.ideal_s / 0.8 + 1e-4 * kernels.layers))
            )
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    chips, truth = [run.chip for run in runs], np.log([run.measured_s for run in runs])
    assert by_efficiency(runs, chips) == pytest.approx(truth, abs=0.01)
    assert np.max(np.abs(by_efficiency(runs, chips, layers=False) - truth)) > 0.1


def test_an_ideal_decode_step_is_all_bytes_at_the_full_bandwidth() -> None:
    device = datasheet.load("rtx-3060")
    kernels = kernels_of(MODELS[1], "F16", device, "gpu", "llama.cpp", 1, 64)
    weights = 2 * 6.74e9  # its token table is not read
    assert kernels.ideal_s == pytest.approx(weights / 360e9, rel=0.03)
    assert kernels.layers == 32


@pytest.mark.parametrize(
    ("told", "cores", "bandwidth"),
    [
        ("7950X CPU, 8 threads", 8, 83.2e9),
        ("7950X, CPU; prefill with 16 threads, decode with the best count (4)", 4, 83.2e9),
        ("7950X, 128 GB DDR5-3600, 16 threads", 16, 83.2e9 * 3600 / 5200),
        ("7950X CPU, 64 threads", 16, 83.2e9),
        ("", 16, 83.2e9),
    ],
)
def test_a_processor_runs_with_the_threads_and_the_memory_of_its_row(told: str, cores: int, bandwidth: float) -> None:
    device = edge_runs.as_it_ran({"device_detail": told}, datasheet.load("ryzen-9-7950x"), "decode")
    assert local_engines.cores(device) == cores
    assert device.mem_bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-5)


def test_a_program_built_for_avx2_has_no_products_of_int8() -> None:
    sheet = datasheet.load("core-i5-1235u")
    built = edge_runs.as_it_ran({"device_detail": "16 GB DDR4, 12 threads, AVX2"}, sheet, "prefill")
    assert local_engines.product_gain(sheet, "cpu", "llama.cpp", "q4_k") == pytest.approx(4.0)
    assert local_engines.product_gain(built, "cpu", "llama.cpp", "q4_k") == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("date", "epoch"),
    [("2024-05", "2025"), ("2023-11 to 2025", None), ("2024-2025", None), ("2026-05-18", None), ("", None)],
)
def test_runs_of_old_versions_have_terms_of_their_own(date: str, epoch: str | None) -> None:
    assert edge_runs.epoch_of(date) == epoch


def test_nothing_is_too_fast_for_an_npu_whose_rate_is_not_published(tmp_path: Path) -> None:
    """11 of the table's prompts were left out as impossible, for a rate that was a guess."""
    fast = row(
        "snapdragon-8-elite", MODELS[1], "w4a16", runtime="genie (genie)", variant="npu", prefill_tokens_per_s=1e5
    )
    table = tmp_path / "edge.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*NEEDED, "device_class", "prompt_tokens", "gen_tokens", "variant"))
        writer.writeheader()
        writer.writerow(fast)
    (run,) = read_runs(table)
    assert run.part == "npu"
    assert run.plausible


def test_kin_are_other_chips_of_the_architecture(tmp_path: Path) -> None:
    rows = [row(device, MODELS[0], "Q4_0", decode_tokens_per_s=100.0) for device in DEVICES]
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    assert edge.kin_of(runs) == [True] * 4  # two of Ampere, two of Ada
    assert edge.kin_of(runs[:3]) == [True, True, False]


def test_validate_writes_rates_with_their_intervals(tmp_path: Path) -> None:
    known = row("rtx-3090", MODELS[1], "Q4_0", decode_tokens_per_s=150.0, prefill_tokens_per_s=4000.0)
    unknown = row("rtx-3090", "nobody/knows-this-model", "Q4_0", decode_tokens_per_s=150.0)
    table = write_table(tmp_path / "edge.csv", [known, unknown])
    scores = validate("edge", table, tmp_path / "out.csv")
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
        validate("edge", table, tmp_path / "out.csv")
    with pytest.raises(InputError, match="gemm has fits that leave out a device or a family, not a vendor"):
        validate("gemm", table, tmp_path / "out.csv", leave_out="vendor")
    with pytest.raises(InputError, match="edge is fitted to a table of measured runs"):
        fit(["edge"], None, None, on_progress=print)


def test_a_prompt_asked_again_of_a_server_that_caches_is_read_from_its_cache(tmp_path: Path) -> None:
    """Rates of 100,000 tokens/s are no arithmetic: all but a prompt's last tokens are found in the cache."""
    told = "median run of 3 at prompt 'code'; server measurement"
    rows = [
        row("apple-m3-max", "Qwen/Qwen3-8B", "Q4_K_M", prefill_tokens_per_s=9e4) | {"prompt_tokens": 4000} | changes
        for changes in (
            {"notes": told, "runtime": "ollama"},
            {"notes": told, "runtime": "mlx-vlm"},  # keeps none
            {"notes": "llama-bench", "runtime": "ollama"},
            {"notes": told, "runtime": "ollama", "model": "google/gemma-2-2b-it", "prompt_tokens": 8192},  # its context
        )
    ]
    runs = read_runs(write_table(tmp_path / "edge.csv", rows))
    assert [run.cached for run in runs] == [True, False, False, False]
    again, first = runs[0], runs[2]
    assert again.interval_class == "cached prompt"
    assert not again.plausible
    assert again.kernels is not None
    assert first.kernels is not None
    compute_s = [float(each.kernels.counts @ each.kernels.compute_s) for each in (again, first) if each.kernels]
    assert compute_s[0] < 0.05 * compute_s[1]


def test_a_short_prompt_is_a_sentence(tmp_path: Path) -> None:
    rows = [
        row("apple-m4", "Qwen/Qwen3-8B", "Q4_K_M", prefill_tokens_per_s=50, prompt_tokens="", notes=notes)
        for notes in ("the prompt is short", "")
    ]
    assert [run.tokens for run in read_runs(write_table(tmp_path / "edge.csv", rows))] == [8.0, 512.0]

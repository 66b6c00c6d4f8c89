"""Raw output of llama-bench, written by hand from its documented fields, becomes measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.deploy.kits.llama_bench import BenchTest, format_of
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.errors import InputError, MeasurementError, SpecError
from chipwise.model.published.read import resolve

MODEL = "smollm2-135m"
PARAMETERS = resolve(MODEL).parameters()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path / "home"))
    return tmp_path


def test(**changes: Any) -> dict[str, Any]:
    """One result as the program prints it: fields and their order as in the README of llama-bench."""
    return {
        "build_commit": "1d20e53",
        "build_number": 5000,
        "cpu_info": "Cortex-A76",
        "gpu_info": "",
        "backends": "CPU",
        "model_filename": "models/smollm2.gguf",
        "model_type": "llama ?B Q8_0",
        "model_size": 144_000_000,
        "model_n_params": PARAMETERS,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_threads": 4,
        "type_k": "f16",
        "type_v": "f16",
        "n_gpu_layers": 0,
        "n_prompt": 64,
        "n_gen": 0,
        "n_depth": 0,
        "test_time": "2026-01-02T03:04:05Z",
        "avg_ns": 200_000_000,
        "stddev_ns": 1,
        "avg_ts": 320.0,
        "stddev_ts": 1.0,
        "samples_ns": [190_000_000, 200_000_000, 260_000_000],
        "samples_ts": [1.0, 1.0, 1.0],
    } | changes


test.__test__ = False  # type: ignore[attr-defined]
PROMPT = test()
STEPS = test(n_prompt=0, n_gen=32, samples_ns=[320_000_000, 640_000_000, 960_000_000])


def write(folder: Path, rows: object) -> Path:
    path = folder / "bench.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return path


def test_samples_are_seconds_of_a_prompt_and_mean_seconds_of_a_step(home: Path) -> None:
    """32 steps in 0.32, 0.64 and 0.96 s are 10, 20 and 30 ms a step; of single steps only the median is known."""
    (found,) = chipwise.import_measurements(write(home, [PROMPT, STEPS]), model=MODEL, device="my-pi").measurements
    assert found.ttft_s == (0.19, 0.2, 0.26)
    assert found.tpot_s == pytest.approx((0.01, 0.02, 0.03))
    assert (found.device, found.runtime, found.threads) == ("my-pi", "llama.cpp", 4)
    assert found.workload == chipwise.Workload(prompt_tokens=64, new_tokens=33)  # the prompt gives the first
    assert found.metric("tpot_p50") == pytest.approx(0.02)
    assert found.metric("ttft_p99") == pytest.approx(0.26, rel=0.01)
    with pytest.raises(MeasurementError, match="gives only means over 32 decode steps"):
        found.metric("tpot_p99")
    assert [row["metric"] for row in found.rows()] == ["ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "itl_p50"]
    (stored,) = MeasurementStore().entries()
    assert stored.measurement == found
    assert stored.imported
    assert stored.design.weights == "q8_0"


def test_a_tied_head_may_be_stored_twice(home: Path) -> None:
    """A file that stores the tied head separately counts it again: 49,152 × 576 parameters more."""
    rows = [{**row, "model_n_params": PARAMETERS + 49_152 * 576} for row in (PROMPT, STEPS)]
    assert chipwise.import_measurements(write(home, rows), model=MODEL).new == 1


def test_the_command_imports_lists_and_shows_it(home: Path) -> None:
    path = write(home, "\n".join(json.dumps(row) for row in (PROMPT, STEPS)) + "\n")  # -o jsonl
    run = CliRunner()
    done = run.invoke(app, ["measurements", "import", str(path), "--model", MODEL, "--json"], catch_exceptions=False)
    assert json.loads(done.output)["imported"] == 1
    (row,) = json.loads(run.invoke(app, ["measurements", "--json"], catch_exceptions=False).output)
    assert (row["device"], row["tpot_p50_s"], row["tpot_p99_s"]) == ("Cortex-A76", pytest.approx(0.02), None)
    shown = run.invoke(app, ["measurements", "show", row["id"]], catch_exceptions=False).output
    assert "ttft_p99" in shown
    assert "tpot_p50" in shown
    assert "tpot_p99" not in shown
    out = home / "mine.jsonl"
    run.invoke(app, ["measurements", "export", str(out)], catch_exceptions=False)
    run.invoke(app, ["measurements", "delete", row["id"]], catch_exceptions=False)
    assert chipwise.import_measurements(out).new == 1
    assert MeasurementStore().entries()[0].measurement.steps_per_sample == 32


def test_generation_goes_with_the_prompt_of_its_depth(home: Path) -> None:
    """Of two prompts, steps at depth 64 belong to the first alone; those at depth 0 would go with both."""
    deep = {**STEPS, "n_depth": 64}
    (found,) = chipwise.import_measurements(write(home, [PROMPT, STEPS, deep]), model=MODEL).measurements
    assert found.environment["decode_depth"] == 64
    both = chipwise.import_measurements(write(home, [PROMPT, test(n_prompt=128), STEPS]), model=MODEL).measurements
    assert [item.workload.prompt_tokens for item in both] == [64, 128]
    assert [item.environment["decode_depth"] for item in both] == [0, 0]


def test_a_gpu_is_the_device_where_it_did_the_work(home: Path) -> None:
    rows = [{**row, "gpu_info": "NVIDIA GeForce RTX 4090", "n_gpu_layers": 99} for row in (PROMPT, STEPS)]
    (found,) = chipwise.import_measurements(write(home, rows), model=MODEL).measurements
    assert found.device == "NVIDIA GeForce RTX 4090"
    with pytest.raises(SpecError, match="measured on NVIDIA GeForce RTX 4090, which is not rtx-3090"):
        chipwise.import_measurements(write(home, rows), model=MODEL, device="rtx-3090")


def test_bad_files_are_one_clear_error_each_and_add_nothing(home: Path) -> None:
    whole = json.dumps([PROMPT, STEPS])
    unnamed = {name: value for name, value in PROMPT.items() if name != "n_prompt"}
    cases: list[tuple[object, str]] = [
        (whole[: len(whole) // 2], "ends in the middle"),
        ([PROMPT], "no generation test; run llama-bench with -n too"),
        ([STEPS], "no prompt test; run llama-bench with -p too"),
        ([unnamed, STEPS], r"result 1\.n_prompt: this field is missing"),
        ([PROMPT, {**STEPS, "samples_ns": []}], r"result 2\.samples_ns"),
        ([PROMPT, {**STEPS, "samples_ns": ["fast"]}], r"result 2\.samples_ns\[0\]: must be a whole number"),
        ([PROMPT, {**STEPS, "samples_ns": [0]}], r"result 2\.samples_ns"),
        ([PROMPT, {**STEPS, "n_threads": 2}], "no prompt test was made with the same settings as a generation test"),
        ([PROMPT, {**STEPS, "model_filename": "models/other.gguf"}], "results of 2 models"),
        ([{**PROMPT, "model_n_params": 7_000_000_000}, STEPS], "7,000,000,000 parameters and smollm2-135m has"),
        ([PROMPT, "text, build_commit"], "must be a mapping"),
    ]
    for rows, message in cases:
        with pytest.raises(InputError, match=message):
            chipwise.import_measurements(write(home, rows), model=MODEL)
    with pytest.raises(InputError, match=r"names only the file models/smollm2.gguf; say which model"):
        chipwise.import_measurements(write(home, [PROMPT, STEPS]))
    with pytest.raises(InputError, match="weight format"):
        chipwise.import_measurements(write(home, [{**PROMPT, "model_type": "llama"}, STEPS]), model=MODEL)
    assert MeasurementStore().entries() == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama 1B Q4_K - Medium", "q4_k_m"),
        ("qwen2 1.5B Q4_0", "q4_0"),
        ("llama 7B mostly Q8_0", "q8_0"),
        ("llama 1B F16", "fp16"),
        ("llama 1B all F32", "fp32"),
        ("gemma3 1B BF16", "bf16"),
        ("llama 7B", None),
    ],
)
def test_weight_formats_by_llama_cpps_names(text: str, name: str | None) -> None:
    row = BenchTest(model_filename="", samples_ns=(1,), n_prompt=1, n_gen=0, n_threads=1, model_type=text)
    assert format_of(row) == name

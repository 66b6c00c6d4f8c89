"""A row is predicted for the part and the cores that its variant names; times that no chip can reach are left out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.deploy.teach.machine import teach_rows
from chipwise.deploy.teach.observations import MeasuredRow, observe, prior_deviation
from chipwise.deploy.teach.posterior import fit
from chipwise.hardware import datasheet

M3 = datasheet.load("apple-m3-max")
ROW = MeasuredRow(
    number=2,
    model="meta-llama/Llama-2-7b-hf",
    runtime="llama.cpp",
    weights="q4_0",
    prompt_tokens=512,
    ttft_s=3.0,
    tpot_s=0.02,
)


@pytest.mark.parametrize("variant", ["cpu", "cpu/cpu", "CPU/metal off"])
def test_a_variant_that_names_a_part_is_predicted_as_that_part(variant: str) -> None:
    row = replace(ROW, variant=variant)
    seen, problems = observe([row], M3)
    named, _ = observe([replace(row, variant="")], datasheet.load("apple-m3-max:cpu"))
    whole, _ = observe([replace(row, variant="")], M3)
    assert not problems
    assert seen.sheet_s == pytest.approx(named.sheet_s)
    assert seen.sheet_s[0] > 2 * whole.sheet_s[0]


def test_a_part_that_the_sheet_lacks_leaves_it_whole() -> None:
    xeon = datasheet.load("xeon-8480-plus")
    assert replace(ROW, variant="gpu").sheet(xeon) is xeon
    assert replace(ROW, variant="full/metal").sheet(M3) is M3


def test_threads_are_cores_where_onnx_runtime_runs_on_them() -> None:
    xeon = datasheet.load("xeon-8480-plus")
    row = replace(ROW, runtime="onnxruntime", weights="fp32", variant="8 threads")
    assert row.sheet(xeon).name == "xeon-8480-plus:8-cores"
    assert replace(row, runtime="llama.cpp").sheet(xeon) is xeon


def test_what_is_taught_stands_on_the_part_that_most_rows_ran_on() -> None:
    rows = [replace(ROW, number=i, prompt_tokens=64 * i, ttft_s=0.5 * i, tpot_s=0.1, variant="cpu") for i in (1, 2, 3)]
    teaching = teach_rows(M3, [*rows, replace(ROW, number=9)], name="box", source="rows.csv")
    assert teaching.base == "apple-m3-max:cpu"
    assert teaching.variant == "cpu"


def test_a_prompt_faster_than_the_chips_peak_is_left_out_and_its_other_times_are_used() -> None:
    """Llama 2 7B, 512 tokens: 6.6e9 x 2 x 512 = 6.8 TFLOP, and some 30 TFLOP/s: 5 ms were a prompt in a cache."""
    seen, problems = observe([replace(ROW, ttft_s=5e-3)], M3)
    assert seen.quantities == ("tpot",)
    assert "part of the prompt may have been in a cache" in str(problems[0])
    seen, problems = observe([ROW], M3)
    assert seen.quantities == ("ttft", "tpot")
    assert not problems


def test_decode_times_alone_do_not_turn_prompts_into_hours() -> None:
    """A step of a mixture has a little arithmetic of many rows too; a prompt has a thousand times as much."""
    taken = {"openai/gpt-oss-20b": 0.012, "Qwen/Qwen3-30B-A3B": 0.014, "meta-llama/Llama-2-7b-hf": 0.02}
    rows = [
        replace(ROW, model=name, weights="q4_k_m", prompt_tokens=tokens, ttft_s=None, tpot_s=seconds)
        for name, seconds in taken.items()
        for tokens in (64, 4096)
    ]
    known, _ = observe(rows, M3)
    asked, _ = observe([replace(row, prompt_tokens=2048, ttft_s=60.0, tpot_s=None) for row in rows], M3)
    logs, deviations = fit(known, common=prior_deviation(known)).predict(asked)
    assert abs(logs - np.log(asked.sheet_s)).max() < math.log(3)
    assert (deviations > 0).all()

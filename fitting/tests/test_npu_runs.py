"""Rows of language models on NPUs, as runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from chipwise_fitting.npu_runs import TABLE, read_npu_runs

HEAD = "row_id,model,component,precision,device,runtime,context,ttft_min_ms,ttft_max_ms,tokens_per_s"
ROWS = (
    "q1,a,Qwen3-0.6B,w4a16,Samsung Galaxy S25,geniex_qairt,1024,100.0,700.0,80.0",
    "q2,a,Qwen3-0.6B,w4a16,Samsung Galaxy S25,genie,4096,90.0,,125.0",
    "q3,a,Qwen3-0.6B,w4a16,Snapdragon X Elite CRD,genie,4096,90.0,300.0,40.0",  # contradicted by the other runtime
    "q4,a,Qwen3-0.6B,q4_0,Samsung Galaxy S25,geniex_llamacpp,512,90.0,300.0,90.0",  # of an unknown part of the chip
    "q5,a,Qwen3-0.6B,w4a16,Dragonwing Q-8750,genie,4096,90.0,,125.0",  # the chip of the second row
)
GGUF = (
    "q6,a,Qwen3-0.6B,q4_0,Samsung Galaxy S26,geniex_llamacpp,512,90.0,360.0,90.0",
    "q7,a,Qwen3-0.6B,q4_0,Samsung Galaxy S26,geniex_llamacpp,512,80.0,320.0,60.0",
    "q8,a,Qwen3-0.6B,q4_0,Samsung Galaxy S26,geniex_llamacpp,512,30.0,120.0,70.0",
)


def test_three_rows_of_llama_cpp_are_those_of_the_cpu_the_gpu_and_the_npu(tmp_path: Path) -> None:
    (tmp_path / TABLE).write_bytes(gzip.compress("\n".join((HEAD, *GGUF)).encode()))
    runs = read_npu_runs(tmp_path)
    assert [(run.row_id, run.part) for run in runs if run.phase == "decode"] == [
        ("q6", "cpu"),
        ("q7", "gpu"),
        ("q8", "npu"),
    ]
    assert {(run.chip, run.stack) for run in runs} == {("snapdragon-8-elite-gen5", "geniex-llama.cpp")}


def test_a_row_is_a_decode_step_and_two_prompts(tmp_path: Path) -> None:
    (tmp_path / TABLE).write_bytes(gzip.compress("\n".join((HEAD, *ROWS)).encode()))
    runs = read_npu_runs(tmp_path)
    assert [(run.row_id, run.phase, run.tokens) for run in runs] == [
        ("q1", "decode", 1.0),
        ("q1:128", "prefill", 128.0),
        ("q1:1024", "prefill", 1024.0),
        ("q2", "decode", 1.0),
        ("q2:128", "prefill", 128.0),
    ]
    assert [run.measured_s for run in runs] == pytest.approx([1 / 80, 0.1, 0.7, 1 / 125, 0.09])
    assert {(run.chip, run.part) for run in runs} == {("snapdragon-8-elite", "npu")}
    full, short = (sum(run.kernels.memory_s * run.kernels.counts) for run in (runs[0], runs[3]))
    keys = 2 * 28 * 8 * 128 * 2  # bytes of a position's keys and values: layers, heads, head size, 2 bytes each
    bandwidth = runs[0].device.mem_bandwidth_bytes_per_s
    assert (full - short) * bandwidth == pytest.approx(512 * keys, rel=0.02)  # 1,024 positions against 512


def test_a_folder_without_the_table_has_none(tmp_path: Path) -> None:
    assert read_npu_runs(tmp_path) == []

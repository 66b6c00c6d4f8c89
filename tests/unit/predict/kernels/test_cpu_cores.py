"""ONNX Runtime on CPU cores: kernels by pencil, caches by law, and a machine that set no constant."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import InputError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import CORES
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import caches, cores, times_of
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import GroupCost, cost_groups, grouped
from chipwise.predict.served.request import Request

CLAIMS = Path(__file__).parents[4] / "benchmarks" / "claims-cpu.csv"
ONE = datasheet.load("xeon-8480-plus:1-core")
MEMORY_S = 307.2e9  # bytes a second of the sheet


def test_one_core_has_its_share_of_the_rate_and_all_of_the_memory() -> None:
    whole = datasheet.load("xeon-8480-plus")
    assert ONE.peak("fp32", kind="vector") == pytest.approx(whole.peak("fp32", kind="vector") / 56)
    assert ONE.mem_bandwidth_bytes_per_s == whole.mem_bandwidth_bytes_per_s
    assert ONE.name == "xeon-8480-plus:1-core"
    assert datasheet.load("xeon-8480-plus:500-cores").peak("fp32") == whole.peak("fp32")


def test_what_some_of_the_cores_draw_is_unknown() -> None:
    assert datasheet.load("xeon-8480-plus:56-cores").board_power_w == 350
    with pytest.raises(Unsupported, match="board_power"):
        _ = ONE.board_power_w


def test_cores_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(InputError, match="cores must be at least 1"):
        datasheet.load("xeon-8480-plus:0-cores")
    with pytest.raises(UnknownName, match="h100-sxm:cpu"):
        datasheet.load("h100-sxm:2-cores")
    with pytest.raises(Unsupported, match="no FP32 rate of its CPU cores"):
        cores.vector_engine(datasheet.load("h100-sxm"))


def test_a_product_of_one_row_by_pencil() -> None:
    """512 x 1,024 FP32: 2.1 MB from memory at 14 GB/s, 1 MFLOP at 1.5 x 128 GFLOP/s, a node of 4,500 clocks."""
    found = times_of(Matmul(m=np.array([1]), k=512, n=1024), ONE, stack=CORES)
    moved, flops = 4 * (512 * 1024 + 512 + 1024), 2 * 512 * 1024
    expected = 4500 / 2e9 + flops / (1.5 * 2 * 32 * 2e9) + moved / 14e9
    assert found.latency_s[0] == pytest.approx(expected)
    assert found.memory_s[0] == pytest.approx(moved / MEMORY_S)


def test_a_small_model_is_read_from_the_last_cache_and_a_large_one_from_memory() -> None:
    """15 bytes a clock at 2 GHz from the last cache; 14 GB/s from memory; nothing is slower than memory."""
    sizes = np.array([20e6, 20e9])
    cached, memory = caches.bandwidth_bytes_per_s(sizes, ONE, CORES)
    assert cached == pytest.approx(15 * 2e9, rel=0.05)
    assert memory == pytest.approx(14e9, rel=0.01)
    saved = caches.saved_share(sizes / MEMORY_S, ONE, CORES)
    assert saved[0] * 20e6 / 14e9 == pytest.approx(20e6 / 14e9 - 20e6 / cached)
    assert saved[1] < 0.01


@given(small=st.floats(1e3, 1e11), times=st.floats(1, 1e3), threads=st.integers(1, 56))
def test_more_to_read_is_never_read_faster(small: float, times: float, threads: int) -> None:
    sheet = datasheet.load(f"xeon-8480-plus:{threads}-cores")
    near, far = caches.bandwidth_bytes_per_s(np.array([small, small * times]), sheet, CORES)
    assert near >= far * (1 - 1e-9) >= cores.memory_bytes_per_s(sheet) * (1 - 1e-6)
    assert (caches.saved_share(np.array([small]), sheet, CORES) >= -1e-9).all()


def test_one_core_of_an_epyc_has_one_eighths_share_of_the_last_cache() -> None:
    """64 cores with 256 MiB, of which eight share a piece: a core has 32 MiB."""
    capacity = cores.caches_of(datasheet.load("epyc-9554:1-core"))[-1].capacity_bytes
    assert capacity == pytest.approx(32 * 2**20)


@pytest.mark.parametrize("weights", ["fp32", "int8", "int4"])
def test_gpt2_on_a_machine_that_set_no_constant_is_inside_the_interval(weights: str) -> None:
    with CLAIMS.open() as stream:
        taken = [row for row in csv.DictReader(stream) if row["weights"] == weights and row["model"] == "gpt2"]
    assert taken
    request = Request(
        model="gpt2",
        deployment=Deployment(
            device="epyc-9755:1-core", runtime="onnxruntime", weights=weights if weights == "fp32" else f"{weights}_own"
        ),
        prompt_tokens=int(taken[0]["prompt_tokens"]),
        new_tokens=int(taken[0]["new_tokens"]),
    )
    (group,), _ = grouped([request])
    (found,) = cost_groups([group])
    assert isinstance(found, GroupCost)
    assert found.ttft_log_halfwidth is not None
    ttft_s, tpot_s = (float(np.median([float(row[f"{name}_p50_s"]) for row in taken])) for name in ("ttft", "tpot"))
    assert abs(math.log(found.tpot_s[0] / tpot_s)) < found.log_halfwidth[0]
    assert abs(math.log(found.prefill_s[0] / ttft_s)) < found.ttft_log_halfwidth[0]

"""Bytes that stay in a cache: rates against a published table, by pencil, and as a law."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chipwise
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import uniform
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import caches, local, times_of

MEASURED = (  # device, KiB that are read again and again, GB/s (RRZE-HPC/gpu-benches 1038c5d, gpu-l2-cache)
    ("l40", 9728, 5215), ("l40", 76288, 5263), ("l40", 132608, 851), ("l40", 411648, 837),
    ("h100-pcie", 14336, 6947), ("h100-pcie", 30720, 6953), ("h100-pcie", 69632, 2019), ("h100-pcie", 374272, 1988),
    ("h200-sxm", 19968, 9885), ("h200-sxm", 33792, 9629), ("h200-sxm", 100352, 3904),
    ("a100-sxm-80gb", 12288, 5435), ("a100-sxm-80gb", 25600, 5376), ("a100-sxm-80gb", 76288, 1879),
    ("mi100", 5760, 2726), ("mi210", 5120, 4952), ("mi210", 100352, 1359),
)  # fmt: skip


@pytest.mark.parametrize(("device", "kib", "gb_per_s"), MEASURED)
def test_rates_by_working_set_are_those_measured(device: str, kib: int, gb_per_s: float) -> None:
    """Peaks are published for A100, MI210 and all memories, so measured rates are up to 30 % lower."""
    found = caches.bandwidth_bytes_per_s(np.array([1024.0 * kib]), datasheet.load(device), "vllm")[0]
    assert gb_per_s * 1e9 / 1.15 < found < 1.45 * gb_per_s * 1e9


def test_a_chip_whose_cache_has_no_known_rate_is_priced_from_memory() -> None:
    sheet = datasheet.load("rtx-5090")
    assert caches.caches_of(sheet, "llama.cpp") == []
    assert caches.saved_share(np.array([1e-6]), sheet, "llama.cpp")[0] == pytest.approx(0.0)


def test_all_cores_of_a_phone_reach_its_caches_together() -> None:
    """8 bytes a clock for two cores at 4.32 GHz and six at 3.53 GHz, in 24 MB."""
    (cache,) = caches.caches_of(datasheet.load("snapdragon-8-elite"), "llama.cpp")
    assert cache.capacity_bytes == 24e6
    assert cache.bytes_per_s == pytest.approx(8 * (2 * 4.32e9 + 6 * 3.53e9))


@given(
    device=st.sampled_from(["l40s", "h100-sxm", "mi300x", "rtx-4090", "snapdragon-8-elite", "ryzen-9-7950x"]),
    stack=st.sampled_from(["llama.cpp", "vllm"]),
    small=st.floats(1e3, 1e11),
    times=st.floats(1, 1e3),
)
def test_more_to_read_is_never_read_faster(device: str, stack: str, small: float, times: float) -> None:
    sheet = datasheet.load(device)
    near, far = caches.bandwidth_bytes_per_s(np.array([small, small * times]), sheet, stack)
    assert near >= far * (1 - 1e-9) >= caches.memory_bytes_per_s(sheet, stack) * (1 - 1e-6)
    assert 0 <= caches.saved_share(np.array([small / sheet.mem_bandwidth_bytes_per_s]), sheet, stack)[0] + 1e-9 < 1


def test_without_its_reading_a_product_takes_its_launch_and_its_arithmetic() -> None:
    """On a GPU, (a³ + b³)^(1/3) - b of the time is reading; CPU cores still unpack at 8 FLOPs a byte."""
    op = Matmul(m=np.array([1]), k=1024, n=4096, weights="q8_0", activations="fp16")
    for name in ("rtx-4090", "ryzen-9-7950x"):
        sheet = datasheet.load(name)
        part = local.part_of(sheet, "llama.cpp")
        found = times_of(op, sheet, stack="llama.cpp")
        memory_s, compute_s, _ = local.demands(op, sheet, part, "llama.cpp")
        slower, harder, launch_s = local._shipped_factors(sheet, part, "llama.cpp", local.KernelKind.of(op), True)
        unpacking_s = op.work().bytes / (0.125 * local.vector_flops_per_s(sheet, part)) if part == "cpu" else 0.0
        a, b, c = memory_s * slower, compute_s * harder, unpacking_s * slower
        assert found.latency_s[0] == pytest.approx(launch_s + math.cbrt(a[0] ** 3 + b[0] ** 3))
        assert found.reading_s is not None
        assert found.reading_s[0] == pytest.approx(
            math.cbrt(a[0] ** 3 + b[0] ** 3) - math.cbrt(np.max(c) ** 3 + b[0] ** 3)
        )


def test_a_served_kernel_saves_the_least_time_of_bytes_that_were_not_in_a_cache_when_it_was_timed() -> None:
    """On an H100 six times 33.5 MB do not fit in 52.4 MB; six times 2.1 MB do, so that time is already the cache's."""
    sheet = datasheet.load("h100-sxm")
    for width, cold in ((4096, True), (1024, False)):
        op = Matmul(m=np.array([1]), k=width, n=width, weights="bf16", activations="bf16")
        found = times_of(op, sheet, stack="vllm")
        assert found.memory_s[0] == pytest.approx(2 * width**2 / 3.35e12, rel=0.01)
        assert caches.reading_s(found, sheet, "vllm")[0] == pytest.approx(cold * found.memory_s[0], abs=1e-12)
        slow = replace(found, latency_s=found.launch_s + found.compute_s + 1e-7)
        assert caches.reading_s(slow, sheet, "vllm")[0] == pytest.approx(cold * 1e-7, abs=1e-12)
    op = Matmul(m=np.array([1]), k=1024, n=1024, weights="bf16", activations="bf16")
    uncached = times_of(op, datasheet.load("b200"), stack="vllm")  # no rate of its cache is known
    assert caches.reading_s(uncached, datasheet.load("b200"), "vllm") == uncached.memory_s


@pytest.mark.parametrize(
    ("device", "runtime", "weights", "width"),
    [("rtx-4090", "llama.cpp", "q8_0", 512), ("h100-sxm", "vllm", "bf16", 1536)],
)
def test_a_token_of_a_small_model_is_faster_and_of_a_large_one_is_not(
    device: str, runtime: str, weights: str, width: int
) -> None:
    """A token saves a share of the time for which it would wait for memory, less than all of it."""
    for depth, held in ((1, True), (96, False)):
        arch = uniform(vocab_size=512, d_model=width, depth=depth, heads=width // 64, ffn_width=4 * width // 3)
        found = chipwise.estimate(arch, device=device, runtime=runtime, weights=weights, prompt=16, new=16)
        moved = sum(cost.work.bytes * cost.count for cost in found.decode)
        saved_s = sum(cost.saved_s for cost in found.decode)
        (cache,) = caches.caches_of(datasheet.load(device), runtime)
        assert (moved < 0.8 * cache.capacity_bytes) == held
        assert (saved_s > 0.01 * sum(cost.memory_s for cost in found.decode)) == held
        assert saved_s < sum(cost.latency_s for cost in found.decode)

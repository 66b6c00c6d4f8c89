"""What the NPU and the GPU of a phone read and compute at, where their makers publish no rate."""

from __future__ import annotations

import pytest

from chipwise.hardware.datasheet import load
from chipwise.predict.kernels.local_engines import (
    GPU_FLOPS_A_BYTE,
    NPU_GENERATION,
    NPU_PORT,
    read_bytes_per_s,
    vector_flops_per_s,
)


def test_an_npu_reads_no_faster_than_its_port_or_the_memory() -> None:
    for name, generation in NPU_GENERATION.items():
        device = load(name)
        limits = [device.mem_bandwidth_bytes_per_s, NPU_PORT.get(generation, float("inf"))]
        assert 2 ** (-1 / 6) * min(limits) <= read_bytes_per_s(device, "npu") <= min(limits)
        assert read_bytes_per_s(device, "cpu") == device.mem_bandwidth_bytes_per_s


def test_equal_npus_read_alike_whatever_the_memory_behind_them() -> None:
    """A Snapdragon X Elite has 2.6 times the memory bandwidth of an IQ-8275, and the same NPU."""
    wide, narrow = load("snapdragon-x-elite"), load("qcs8275")
    assert wide.mem_bandwidth_bytes_per_s > 2.5 * narrow.mem_bandwidth_bytes_per_s
    assert read_bytes_per_s(wide, "npu") < 1.3 * read_bytes_per_s(narrow, "npu")


def test_a_phone_gpu_without_a_published_rate_computes_as_others_do_by_byte() -> None:
    device = load("dimensity-9400:gpu")
    assert vector_flops_per_s(device, "gpu") == pytest.approx(GPU_FLOPS_A_BYTE * 85.3e9)
    known = load("snapdragon-8-gen-3:gpu")
    assert vector_flops_per_s(known, "gpu") == 2.77e12
    assert vector_flops_per_s(known, "gpu") / known.mem_bandwidth_bytes_per_s == pytest.approx(37, rel=0.05)

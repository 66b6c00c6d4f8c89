"""Streams: bytes over a bandwidth that saturates, on any device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.hardware import datasheet
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp, SampleOp
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.routing import RouteOp
from chipwise.predict.kernels import stream
from chipwise.predict.kernels.times import launch_s

A100 = datasheet.load("a100-sxm-80gb")
NORM = NormOp(rows=65536, width=8192, activations="bf16")


def test_a_large_norm_goes_at_the_share_of_the_bandwidth() -> None:
    moved = 2 * 65536 * 8192 * 2  # in and out, two bytes each
    assert float(stream.times(NORM, A100).latency_s) == pytest.approx(moved / (stream.SHARE * 2.039e12), rel=0.01)


def test_a_tiny_one_costs_a_launch_and_a_ramp() -> None:
    found = stream.times(Elementwise(function="add", elements=16, activations="bf16"), A100)
    assert float(found.latency_s) == pytest.approx(launch_s(A100) + stream.RAMP_S["gpu"], rel=0.001)


@given(rows=st.integers(1, 10**6), more=st.integers(0, 10**6))
def test_more_rows_are_never_faster(rows: int, more: int) -> None:
    few, many = (float(stream.times(replace(NORM, rows=n), A100).latency_s) for n in (rows, rows + more))
    assert few <= many


def test_the_bandwidth_reached_grows_with_the_bytes() -> None:
    rows = np.array([1, 16, 256, 4096, 65536])
    found = stream.times(replace(NORM, rows=rows), A100)
    reached = found.memory_s / found.latency_s
    assert np.all(np.diff(reached) > 0)
    assert reached[-1] < stream.SHARE


def test_sampling_reads_the_logits_three_times() -> None:
    op = SampleOp(rows=4096, vocabulary=128_000, activations="bf16")
    found = stream.times(op, A100)
    assert float(found.latency_s) == pytest.approx(3 * float(found.memory_s) / stream.SHARE, rel=0.01)


@pytest.mark.parametrize("device", datasheet.names())
def test_every_device_streams(device: str) -> None:
    sheet = datasheet.load(device)
    for op in (NORM, EmbeddingOp(tokens=128, width=4096, rows=128_000, weights="bf16", activations="bf16")):
        assert 0 < float(stream.times(op, sheet).latency_s) < 10


def test_routing_streams_its_scores() -> None:
    op = RouteOp(tokens=1 << 20, experts=256, topk=8)
    found = stream.times(op, A100)
    assert float(found.memory_s) == pytest.approx((4 * 2**20 * 256 + 8 * 2**20 * 8) / 2.039e12)

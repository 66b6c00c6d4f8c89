"""Collectives: bytes and steps by pencil, laws, measured calls, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.collective import CollectiveOp
from chipwise.predict.kernels import collective

H100 = datasheet.load("h100-sxm")
CONSTANTS = collective.DEFAULTS["device"]
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


def test_a_ring_all_reduce_sends_nearly_twice_the_payload_in_fourteen_steps() -> None:
    steps, share = collective.shares("all_reduce", 8)
    assert (float(steps), float(share)) == (14, 2 * 7 / 8)


def test_gathering_sends_seven_eighths_and_a_message_all() -> None:
    assert [float(value) for value in collective.shares("all_gather", 8)] == [7, 7 / 8]
    assert [float(value) for value in collective.shares("p2p", 2)] == [1, 1]


def test_large_payloads_go_at_the_share_of_the_link() -> None:
    # 64 GB over 8 devices at 0.8 of 450 GB/s: 2 · 7/8 · 64e9 / 360e9 seconds; latencies vanish.
    op = CollectiveOp(collective="all_reduce", payload_bytes=64e9, devices=8)
    expected = 1.75 * 64e9 / 360e9
    assert float(collective.alpha_beta_s(op, 450e9, CONSTANTS)) == pytest.approx(expected, rel=0.01)


def test_small_all_reduces_are_one_shot() -> None:
    op = CollectiveOp(collective="all_reduce", payload_bytes=1024, devices=8)
    once = CONSTANTS["once_s"] + 7 * 1024 / (CONSTANTS["once_share"] * 450e9)
    assert float(collective.alpha_beta_s(op, 450e9, CONSTANTS)) == pytest.approx(once)


@given(kind=st.sampled_from(KINDS), payload=st.floats(1, 1e10), more=st.floats(1, 100))
def test_more_bytes_are_never_faster_in_the_formula(kind: str, payload: float, more: float) -> None:
    op = CollectiveOp(collective=kind, payload_bytes=payload, devices=4)  # type: ignore[arg-type]
    larger = replace(op, payload_bytes=payload * more)
    seconds = [float(collective.alpha_beta_s(each, 450e9, CONSTANTS)) for each in (op, larger)]
    assert seconds[0] <= seconds[1] * (1 + 1e-9)


@given(kind=st.sampled_from(KINDS), payload=st.floats(1, 1e10), faster=st.floats(1, 100))
def test_a_faster_link_is_never_slower_in_the_formula(kind: str, payload: float, faster: float) -> None:
    op = CollectiveOp(collective=kind, payload_bytes=payload, devices=8)  # type: ignore[arg-type]
    slow, fast = (float(collective.alpha_beta_s(op, rate, CONSTANTS)) for rate in (50e9, 50e9 * faster))
    assert fast <= slow * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_device_needs_no_time(kind: str) -> None:
    op = CollectiveOp(collective=kind, payload_bytes=1e6, devices=1)  # type: ignore[arg-type]
    assert float(collective.times(op, H100).latency_s) == 0


@pytest.mark.parametrize(
    ("kind", "devices", "payload", "measured_s"),
    [
        ("all_reduce", 2, 256, 4.29e-6),  # vLLM 0.24.0, replayed from a graph
        ("all_reduce", 8, 1 << 30, 5.24e-3),
        ("all_gather", 2, 512, 5.31e-6),  # NCCL 2.29.2
    ],
)
def test_measured_calls_on_an_h100(kind: str, devices: int, payload: int, measured_s: float) -> None:
    # As aiconfigurator-core 0.12.0 lists them.
    op = CollectiveOp(collective=kind, payload_bytes=payload, devices=devices)  # type: ignore[arg-type]
    found = collective.times(op, H100)
    assert float(found.latency_s) == pytest.approx(measured_s, rel=0.3)
    assert found.situation == "seen"


def test_devices_without_a_link_to_others_go_through_the_host() -> None:
    l40s = datasheet.load("l40s")
    assert collective.link(l40s).to == "host"
    op = CollectiveOp(collective="all_gather", payload_bytes=1 << 26, devices=4)
    assert collective.times(op, l40s).latency_s > collective.times(op, H100).latency_s


def test_the_memory_limit_is_the_link_where_that_is_slower() -> None:
    op = CollectiveOp(collective="all_gather", payload_bytes=1 << 30, devices=8)
    assert float(collective.times(op, H100).memory_s) == pytest.approx(7 / 8 * 2**30 / 450e9)


def test_many_sizes_at_once_are_the_same_as_one_by_one() -> None:
    sizes = np.array([1024, 1 << 20, 1 << 28])
    op = CollectiveOp(collective="all_reduce", payload_bytes=sizes, devices=8)
    single = [float(collective.times(replace(op, payload_bytes=int(size)), H100).latency_s) for size in sizes]
    assert collective.times(op, H100).latency_s == pytest.approx(single, rel=1e-4)


def test_a_device_left_out_is_not_known_by_its_name() -> None:
    op = CollectiveOp(collective="all_reduce", payload_bytes=1e6, devices=8)
    answers = [collective.times(op, each, fold="device:h100-sxm") for each in (H100, replace(H100, name="another"))]
    assert float(answers[0].latency_s) == float(answers[1].latency_s)


def test_a_device_without_links_says_so() -> None:
    op = CollectiveOp(collective="all_reduce", payload_bytes=1e6, devices=2)
    with pytest.raises(Unsupported, match="lists no link"):
        collective.times(op, datasheet.load("apple-a17-pro"))

"""Boards for desks: clocks above their sheets, memory without code, collectives through the host."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import collective, gemm
from chipwise.predict.kernels.client_boards import (  # fmt: skip
    CLOCK,
    HOST_S,
    WITHOUT_CODE,
    bandwidth_factor,
    clock_factor,
    is_client,
    without_peers,
)


def test_geforce_boards_are_for_desks_and_others_are_not() -> None:
    for name in ("rtx-4090", "rtx-3090", "rtx-5090"):
        device = datasheet.load(name)
        assert is_client(device)
        assert (clock_factor(device), bandwidth_factor(device)) == (CLOCK, WITHOUT_CODE)
    for name in ("l40s", "h100-sxm", "a10", "rtx-pro-6000", "rtx-pro-6000-server", "mi300x"):
        device = datasheet.load(name)
        assert not is_client(device)
        assert (clock_factor(device), bandwidth_factor(device)) == (1.0, 1.0)


def test_peer_access_is_of_servers_and_of_boards_with_a_link() -> None:
    apart = {name for name in datasheet.names() if without_peers(datasheet.load(name))}
    assert {"rtx-4090", "rtx-5090", "rtx-pro-6000"} <= apart
    assert not apart & {"rtx-pro-6000-server", "l40s", "l4", "a10", "h100-sxm", "a100-sxm-80gb", "mi300x"}


def test_a_collective_through_the_host_is_the_slower_the_more_it_moves() -> None:
    """Beside a server's board of the same chip and link: half a step later at least, and slower by about 56 to 30."""
    payload = np.array([1e4, 1e6, 2e7])
    op = CollectiveOp(collective="all_reduce", payload_bytes=payload, devices=2)
    desk, server = (
        collective.times(op, datasheet.load(name)).latency_s for name in ("rtx-pro-6000", "rtx-pro-6000-server")
    )
    assert (desk > server).all()
    assert desk[0] - server[0] > 0.5 * HOST_S
    assert desk[2] / server[2] == pytest.approx(56 / 30, rel=0.3)
    assert (np.diff(desk) > 0).all()


def test_products_on_an_rtx_4090_take_what_another_laboratory_timed() -> None:
    """Layers of Llama-3.1-8B in bf16 at 1, 64 and 2,048 tokens (casys-kaist/LLMServingSim 5daddb2), within a tenth."""
    measured = {
        (4096, 14336): (126.8e-6, 144.4e-6, 1459.6e-6),  # down
        (28672, 4096): (247.3e-6, 279.0e-6, 2896.8e-6),  # gate and up
    }
    device = datasheet.load("rtx-4090")
    for (n, k), seconds in measured.items():
        op = Matmul(m=np.array([1, 64, 2048]), n=n, k=k, weights="bf16", activations="bf16")
        assert gemm.times(op, device).latency_s == pytest.approx(np.array(seconds), rel=0.1)

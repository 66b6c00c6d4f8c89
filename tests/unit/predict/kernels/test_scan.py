"""Recurrences and short convolutions: the chain by pencil, laws, measured calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.scan import ScanOp
from chipwise.predict.kernels import scan

H100 = datasheet.load("h100-sxm")
QWEN = ScanOp(
    variant="gated_delta",
    batch=1,
    query_tokens=32768,
    heads=32,
    key_size=128,
    value_size=128,
    groups=16,
    activations="bf16",
    state="fp32",
)
CONV = ConvOp(
    batch=8,
    positions=8192,
    in_channels=8192,
    out_channels=8192,
    taps=4,
    groups=8192,
    weights="bf16",
    activations="bf16",
)


def test_a_sequence_is_a_chain_of_chunks_and_heads_go_side_by_side() -> None:
    chunks, waves = scan.chain(replace(QWEN, batch=8), H100)
    assert float(chunks) == 32768 / 64
    assert float(waves) == pytest.approx(8 * 32 / 132)


def test_a_step_reads_and_writes_the_state() -> None:
    # 64 sequences · 32 heads · 128 · 128 values of 4 bytes, in and out: 268 MB; activations are a hundredth of it.
    op = replace(QWEN, batch=64, query_tokens=1)
    _, memory = scan.limits(op, H100)
    assert float(memory) == pytest.approx(2 * 64 * 32 * 128 * 128 * 4 / 3.35e12, rel=0.02)


@pytest.mark.parametrize(
    ("batch", "tokens", "measured_s"), [(1, 32768, 1.511e-3), (8, 4096, 0.4168e-3), (64, 1, 0.0951e-3)]
)
def test_measured_scans_on_an_h100(batch: int, tokens: int, measured_s: float) -> None:
    # vLLM 0.24.0 on an H100 SXM, 32 value heads and 16 key heads, as aiconfigurator-core 0.12.0 lists them.
    found = scan.times(replace(QWEN, batch=batch, query_tokens=tokens), H100)
    assert float(found.latency_s) == pytest.approx(measured_s, rel=0.25)
    assert found.situation == "seen"


def test_a_measured_convolution_on_an_h100() -> None:
    assert float(scan.times(CONV, H100).latency_s) == pytest.approx(0.9629e-3, rel=0.25)


@given(tokens=st.integers(2, 65536), more=st.integers(0, 65536))
def test_more_tokens_are_never_faster_when_nothing_is_cached(tokens: int, more: int) -> None:
    ops = [replace(QWEN, query_tokens=n) for n in (tokens, tokens + more)]
    few, many = (float(scan.base_s(op, H100, scan.DEFAULTS, warm=False)) for op in ops)
    assert few <= many * (1 + 1e-9)


def test_what_fits_the_cache_moves_faster_and_what_does_not_does_not() -> None:
    small, large = scan.hit(np.array([1e6, 1e10]), H100, scan.DEFAULTS)
    assert small == pytest.approx(scan.DEFAULTS["cache"], rel=0.01)
    assert large == pytest.approx(1.0)


def test_mamba2_is_priced_but_counts_as_unseen() -> None:
    op = replace(QWEN, variant="mamba2", key_size=128, value_size=64, groups=8)
    found = scan.times(op, H100)
    assert found.situation == "unseen"
    assert 0 < float(found.latency_s) < 1


def test_steps_and_prompts_may_stand_in_one_table() -> None:
    mixed = scan.times(replace(QWEN, query_tokens=np.array([1, 4096])), H100).latency_s
    single = [float(scan.times(replace(QWEN, query_tokens=n), H100).latency_s) for n in (1, 4096)]
    assert mixed == pytest.approx(single)

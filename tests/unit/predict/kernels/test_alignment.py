"""Misaligned rows: which loads divide them, that aligned sizes are left alone, what is published of the others."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import KernelTimes, alignment, gemm
from chipwise.predict.kernels.alignment import Timing
from chipwise.predict.kernels.gemm_formats import path_of

A100 = datasheet.load("a100-sxm-80gb")


def product(m: int, k: int, n: int, device: str = "a100-sxm-80gb", weights: str = "bf16") -> KernelTimes:
    op = Matmul(m=m, k=k, n=n, weights=weights, activations="bf16")
    return gemm.times(op, datasheet.load(device))


@pytest.mark.parametrize(
    ("n", "halvings"),
    [
        (50_304, 0),  # 100,608 bytes: 16 x 6288
        (50_257, 3),  # 100,514 bytes: 2 x 50,257
        (10_922, 2),  # 21,844 bytes: 4 x 5,461
        (10_924, 1),  # 21,848 bytes: 8 x 2,731
    ],
)
def test_the_load_is_the_largest_power_of_two_that_divides_a_row(n: int, halvings: int) -> None:
    m, k, columns = (np.array([float(size)]) for size in (512, 4096, n))
    assert alignment.halvings(m, columns, k, path_of("bf16", "bf16", A100), A100).tolist() == [halvings]
    assert alignment.halvings(m, k, columns, path_of("bf16", "bf16", A100), A100).tolist() == [halvings]


def test_an_eight_bit_value_is_half_as_wide() -> None:
    """8,200 values: 16,400 bytes in 16 bits, 16 x 1,025; 8,200 bytes in 8 bits, 8 x 1,025."""
    h100 = datasheet.load("h100-sxm")
    m, k, n = (np.array([float(size)]) for size in (512, 8200, 4096))
    assert alignment.halvings(m, n, k, path_of("bf16", "bf16", h100), h100).tolist() == [0]
    assert alignment.halvings(m, n, k, path_of("fp8", "bf16", h100), h100).tolist() == [1]


@settings(deadline=None, max_examples=25)
@given(
    m=st.integers(1, 20_000), k=st.integers(1, 2000), n=st.integers(1, 8000), weights=st.sampled_from(("bf16", "fp8"))
)
def test_aligned_products_are_the_same_to_the_last_bit(m: int, k: int, n: int, weights: str) -> None:
    """Multiples of 16 values, whatever a halving costs."""
    sizes = {"m": m, "k": 16 * k, "n": 16 * n, "device": "h100-sxm", "weights": weights}
    as_shipped = product(**sizes)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "for_each_halving", lambda device: 10.0)
        assert product(**sizes).latency_s == as_shipped.latency_s  # type: ignore[arg-type]
    assert as_shipped.doubt is None


@settings(deadline=None, max_examples=25)
@given(m=st.integers(2, 20_000), k=st.integers(33, 4000), n=st.integers(33, 4000))
def test_a_narrower_load_is_never_faster(m: int, k: int, n: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "for_each_halving", lambda device: 0.0)
        as_if_aligned = product(m, k, n)
    found = product(m, k, n)
    assert found.latency_s >= as_if_aligned.latency_s
    assert np.all(found.log_halfwidth >= as_if_aligned.log_halfwidth)


@pytest.mark.parametrize(
    ("device", "misaligned", "aligned"),
    [
        ("h100-sxm", (16_384, 4096, 10_922), (16_384, 4096, 10_944)),
        ("b200-sxm", (1157, 4096, 1157), (1160, 4096, 1160)),
    ],
)
def test_published_timings_lie_in_the_interval(
    device: str, misaligned: tuple[int, int, int], aligned: tuple[int, int, int]
) -> None:
    """Ratios of time; both sizes have as many tiles. Errors that both share cancel."""
    timing = next(each for each in alignment.published().products if each.device == device)
    slow, fast = product(*misaligned, device), product(*aligned, device)
    assert slow.doubt is not None
    ratio = float((slow.latency_s / fast.latency_s).item()) * np.prod(aligned) / np.prod(misaligned)
    assert 1 < ratio * exp(-float(slow.doubt.item())) < timing.slower < ratio * exp(float(slow.doubt.item()))


def test_what_waits_for_memory_hardly_changes() -> None:
    """Eight tokens through 4096 x 10,922: the bytes are the same, and the H100 waits for them."""
    assert product(8, 4096, 10_922, "h100-sxm").latency_s < 1.2 * product(8, 4096, 10_944, "h100-sxm").latency_s


def test_a_single_row_that_comes_out_starts_where_it_likes() -> None:
    assert product(1, 4096, 50_257).doubt is None
    assert product(1, 4097, 50_304).doubt is not None  # the weights' own rows do not


def test_nothing_is_said_of_chips_that_nobody_timed() -> None:
    assert product(4096, 4096, 4097, "mi300x").doubt is None


def test_a_measured_timing_decides_for_its_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: alignment.for_each_halving(name) for name in ("l40s", "a100-sxm-80gb")}
    here = Timing(device="l40s", slower=1.331, what="a product", source="measured here", row_bytes=2, measured=True)
    kept = alignment.published()
    monkeypatch.setattr(alignment, "published", lambda: replace(kept, products=(*kept.products, here)))
    alignment.for_each_halving.cache_clear()
    try:
        assert alignment.for_each_halving("l40s") == pytest.approx(log(1.1))  # 1.331 = 1.1 cubed: three halvings
        assert alignment.for_each_halving("a100-sxm-80gb") == pytest.approx(before["a100-sxm-80gb"], rel=0.3)
    finally:
        alignment.for_each_halving.cache_clear()


def test_a_timing_of_aligned_rows_is_refused() -> None:
    with pytest.raises(SpecError, match="row_bytes"):
        Timing(device="l40s", slower=1.2, what="", source="", row_bytes=16)

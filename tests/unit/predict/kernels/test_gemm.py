"""Matrix products: laws of the physics, what tiles cost, published rates, intervals, folds, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import gemm, gemm_physics
from chipwise.predict.kernels.gemm_formats import path_of
from chipwise.predict.kernels.gemm_physics import OWN, SHARED, Machine, parts

A100 = datasheet.load("a100-sxm-80gb")
H100 = datasheet.load("h100-sxm")
PRIOR = {name: value for name, (value, _) in SHARED.items()}
PRIOR_OWN = {name: value for name, (value, _) in OWN.items()}
sizes = st.integers(1, 20_000)


def physics_s(m: float, n: float, k: float, machine: Machine) -> float:
    """Seconds by the physics alone, at the constants' priors."""
    size = (np.array([float(value)]) for value in (m, n, k))
    return float(parts(*size, machine, PRIOR, PRIOR_OWN).total_s[0])


def machine(device: datasheet.DeviceProfile = A100, weights: str = "bf16") -> Machine:
    """What the physics asks of ``device``."""
    return Machine.of(device, path_of(weights, "bf16", device))


def bf16(m: object, n: object, k: object) -> Matmul:
    """A product of 16-bit numbers."""
    return Matmul(m=m, n=n, k=k, weights="bf16", activations="bf16")


@given(m=sizes, n=sizes, k=sizes, factor=st.floats(1, 50))
def test_more_bandwidth_never_makes_a_product_slower(m: int, n: int, k: int, factor: float) -> None:
    here = machine()
    faster = replace(here, bandwidth_bytes_per_s=here.bandwidth_bytes_per_s * factor)
    assert physics_s(m, n, k, faster) <= physics_s(m, n, k, here) * (1 + 1e-12)


@given(m=sizes, n=sizes, k=sizes, more=st.integers(0, 5000))
def test_more_rows_never_make_the_memory_s_part_or_the_quantising_faster(m: int, n: int, k: int, more: int) -> None:
    rows = np.array([float(m), float(m + more)])
    found = parts(rows, np.full(2, float(n)), np.full(2, float(k)), machine(H100, "fp8"), PRIOR, PRIOR_OWN)
    assert found.quantise_s[0] <= found.quantise_s[1]
    assert found.bytes[0] <= found.bytes[1]


@given(m=sizes, n=sizes, k=sizes)
def test_no_product_beats_the_data_sheet_by_physics(m: int, n: int, k: int) -> None:
    here = machine()
    least = 2 * m * n * k / here.path.peak_flops_per_s
    assert physics_s(m, n, k, here) > least


def test_bytes_of_a_product_by_pencil() -> None:
    # (2, 3) by (3, 4) in bf16: 6 + 12 values in, 8 out, two bytes each.
    found = parts(np.array([2.0]), np.array([4.0]), np.array([3.0]), machine(), PRIOR, PRIOR_OWN)
    assert found.bytes[0] == 2 * (6 + 12 + 8)


def test_one_column_too_many_starts_a_new_wave() -> None:
    # 27·256 by 4·128 makes 108 tiles of 256×128, one for each SM of an A100; the column after them needs a second wave.
    full, over = physics_s(27 * 256, 4 * 128, 16384, machine()), physics_s(27 * 256, 4 * 128 + 1, 16384, machine())
    assert over > 1.1 * full


@pytest.mark.parametrize("device", [A100, H100, datasheet.load("b200-sxm"), datasheet.load("l40s")])
@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_a_column_beyond_a_tile_costs_more_than_its_share(device: datasheet.DeviceProfile, weights: str) -> None:
    n = np.array([4096, 4097])
    found = gemm.times(Matmul(m=4096, n=n, k=4096, weights=weights, activations="bf16"), device).latency_s
    assert found[1] / found[0] > 1.001  # by FLOPs alone 1.0002


def test_sizes_between_those_measured_take_the_correction_of_the_one_below() -> None:
    sizes = np.array([1.0, 3.0, 64.0, 100.0, 255.0, 256.0, 1600.0, 4097.0])
    assert gemm.on_grid(sizes).tolist() == [1, 2, 64, 64, 128, 256, 1536, 4096]


def test_four_thousand_cubed_is_compute_bound_and_near_published_rates_on_an_a100() -> None:
    # 1,365 FLOP/byte. Published cuBLAS rates of this product on an A100 SXM lie between 230 and 280 TFLOP/s.
    found = gemm.times(bf16(4096, 4096, 4096), A100)
    rate = 2 * 4096**3 / float(found.latency_s)
    assert 2.2e14 < rate < 3.0e14
    assert float(found.compute_s) > 5 * float(found.memory_s)


def test_a_decode_product_streams_its_weights_at_most_at_the_bandwidth() -> None:
    # 16384² bf16 weights are 537 MB: at 3.35 TB/s 160 µs.
    found = gemm.times(bf16(1, 16384, 16384), H100)
    assert float(found.memory_s) == pytest.approx(160e-6, rel=0.01)
    assert 1.0 < float(found.latency_s) / 160e-6 < 1.35


def test_eight_bits_are_faster_than_sixteen_for_large_products_and_not_for_tiny_ones() -> None:
    m, n, k = np.array([8192, 1]), np.array([8192, 64]), np.array([8192, 64])
    wide = gemm.times(bf16(m, n, k), H100).latency_s
    narrow = gemm.times(Matmul(m=m, n=n, k=k, weights="fp8", activations="bf16"), H100).latency_s
    assert narrow[0] < 0.75 * wide[0]
    assert narrow[1] > wide[1]  # the activations are quantised by a kernel of their own


def test_weights_alone_in_four_bits_halve_no_compute_but_most_bytes() -> None:
    op = Matmul(m=1, n=8192, k=8192, weights="int4_g128", activations="bf16")
    found = gemm.times(op, A100, stack="trtllm")
    assert float(found.latency_s) < float(gemm.times(bf16(1, 8192, 8192), A100).latency_s)
    assert float(found.compute_s) == pytest.approx(2 * 8192**2 / 312e12)


@pytest.mark.parametrize("name", ["h100-sxm", "l4", "mi300x", "xeon-8480-plus", "apple-m4", "tpu-v5e"])
@pytest.mark.parametrize("fold", [None, "device:h100-sxm", "family:hopper"])
def test_any_device_has_an_answer_inside_its_interval_and_above_its_limits(name: str, fold: str | None) -> None:
    device = datasheet.load(name)
    dtype = "bf16" if "bf16" in device.peak_flops_per_s else "fp16"
    m = np.array([1, 16, 128, 1024, 8192])
    found = gemm.times(Matmul(m=m, n=4096, k=4096, weights=dtype, activations=dtype), device, fold=fold)
    assert np.all((found.low_s < found.latency_s) & (found.latency_s < found.high_s))
    assert np.all(found.latency_s > 0.8 * found.compute_s)
    assert found.latency_s.shape == m.shape


def test_intervals_widen_from_seen_to_sibling_to_unseen() -> None:
    op = bf16(256, 4096, 4096)
    folds = (None, "device:h100-sxm", "family:hopper")
    found = [gemm.times(op, H100, fold=fold) for fold in folds]
    assert [times.situation for times in found] == ["seen", "sibling", "unseen"]
    widths = [float(times.log_halfwidth) for times in found]
    assert widths == sorted(widths)


def test_a_fold_of_one_device_is_that_of_its_family_where_it_is_alone() -> None:
    assert gemm.fold_name("family:ada") == gemm.fold_name("device:l40s") == "device:l40s"
    assert gemm.fold_name("device:h100_sxm") == "device:h100-sxm"


def test_leaving_out_what_was_never_measured_leaves_the_shipped_model() -> None:
    assert gemm.fold_name("device:tpu-v5e") == gemm.fold_name(None) == gemm.SHIPPED


def test_a_family_s_fold_never_answers_for_its_own_device_from_kernels_of_that_device() -> None:
    assert gemm.fold_name("family:blackwell", datasheet.load("b200-sxm")) == "family:blackwell"
    server = datasheet.load("rtx-pro-6000-server")
    assert gemm.fold_name("family:blackwell", server) == "device:rtx-pro-6000-server"
    assert gemm.times(bf16(1, 1, 1), server, fold="family:blackwell").situation == "unseen"


def test_a_fold_that_is_neither_device_nor_family_is_an_error() -> None:
    with pytest.raises(Unsupported, match="device:NAME"):
        gemm.times(bf16(1, 1, 1), H100, fold="h100")


def test_a_format_without_a_rate_says_what_the_device_lists() -> None:
    with pytest.raises(Unsupported, match="no bf16 throughput"):
        gemm.times(bf16(1, 1, 1), datasheet.load("t4"))


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="bf16"):
        gemm.times(Matmul(m=1, n=1, k=1, weights="bf17", activations="bf16"), H100)


def test_formats_choose_their_kernels() -> None:
    names = {
        ("bf16", "bf16"): "bf16",
        ("fp16", "fp16"): "bf16",
        ("fp8", "bf16"): "fp8",
        ("fp8_block", "bf16"): "fp8_block",
        ("int8", "bf16"): "w8a16",
        ("int8", "int8"): "w8a8",
        ("int4_g128", "bf16"): "w4a16",
        ("fp32", "fp32"): "wide",
        ("nvfp4", "bf16"): "w4a16",  # no 4-bit rate on an H100: widened
    }
    assert {pair: path_of(*pair, H100).name for pair in names} == names
    assert path_of("fp8", "bf16", A100).name == "w8a16"
    assert path_of("nvfp4", "bf16", datasheet.load("b200-sxm")).name == "nvfp4"


def test_rows_in_one_call_are_as_rows_alone() -> None:
    m, n, k = np.array([1, 100, 4097]), np.array([512, 4096, 8192]), np.array([2048, 64, 128])
    together = gemm.times(bf16(m, n, k), H100).latency_s
    alone = [float(gemm.times(bf16(int(a), int(b), int(c)), H100).latency_s) for a, b, c in zip(m, n, k, strict=True)]
    assert together == pytest.approx(alone, rel=1e-4)


def test_short_power_slows_the_clock_and_plenty_does_not_help() -> None:
    l40s = datasheet.load("l40s")
    assert machine(A100).power_ratio == 1.0
    assert machine(l40s).power_ratio < 0.8  # 350 W for 362 TFLOP/s


def test_a_systolic_array_counts_as_several_units() -> None:
    # TPU v5e: one unit of 131,072 FLOPs a clock is eight of the widest.
    here = machine(datasheet.load("tpu-v5e"))
    assert here.units == pytest.approx(8.0, rel=0.03)
    assert gemm_physics.WIDEST_UNIT == 16384


def test_one_row_on_a_vector_engine_is_not_padded_to_sixteen() -> None:
    # A phone's GPU streams 34 MB of weights at 77 GB/s in 0.44 ms; sixteen rows of arithmetic would take 2.5 ms.
    found = gemm.times(
        Matmul(m=1, n=4096, k=4096, weights="fp16", activations="fp16"), datasheet.load("snapdragon-8-gen-3")
    )
    assert float(found.latency_s) < 4 * float(found.memory_s)
    assert found.situation == "unseen"
    assert float(found.log_halfwidth) == gemm.WIDEST


def test_kernels_that_stand_for_others_have_wider_intervals() -> None:
    measured = gemm.times(bf16(64, 4096, 4096), H100, fold="family:hopper").log_halfwidth
    wide = gemm.times(Matmul(m=64, n=4096, k=4096, weights="fp32", activations="fp32"), H100, fold="family:hopper")
    assert float(wide.log_halfwidth) == pytest.approx(gemm.SUBSTITUTE * float(measured))

"""MFU and MBU by pencil, on a machine of round ceilings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.deploy.calibrate.efficiency import efficiency
from chipwise.deploy.measure.measurement import Measurement
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from support.machines import core_like

WORKLOAD = Workload(prompt_tokens=8, new_tokens=8)
DESIGN = Design(arch=uniform(vocab_size=256, d_model=64, depth=1, heads=1, ffn_width=128, max_tokens=32))


def measured(ttft_s: float, tpot_s: float) -> Measurement:
    return Measurement(
        design=DESIGN.digest,
        name="toy",
        runtime="fake",
        runtime_version="1",
        threads=1,
        workload=WORKLOAD,
        device="known",
        ttft_s=(ttft_s,),
        tpot_s=(tpot_s,),
        cpu_s=1.0,
        peak_memory_bytes=None,
        clean=True,
    )


def test_a_prefill_at_half_the_peak() -> None:
    flops = sum(placed.op.work().flops for placed in lower(DESIGN, WORKLOAD, Phase.PREFILL))
    used = efficiency(DESIGN, measured(flops / (0.5 * 1e11), 1e-3), core_like())
    assert used.mfu == pytest.approx(0.5)
    assert used.peak_flops_per_s == 1e11


def test_a_decode_step_reads_its_weights_and_cache_once() -> None:
    """Products: 64·192 + 64·64 + 64·128·3 and the head's 64·256, in FP32; keys and values of 13 positions, 64 wide."""
    touched = 4 * (64 * 192 + 64 * 64 + 3 * 64 * 128 + 64 * 256) + 4 * 2 * 13 * 64
    used = efficiency(DESIGN, measured(1e-3, touched / 8e10), core_like())
    assert used.mbu == pytest.approx(1.0)
    assert used.ceiling == "private caches"


def test_what_no_cache_holds_is_judged_by_dram() -> None:
    small = replace(core_like(), machine=replace(core_like().machine, l2_bytes=1000, l3_bytes=None))
    used = efficiency(DESIGN, measured(1e-3, 1e-3), small)
    assert (used.ceiling, used.bandwidth_bytes_per_s) == ("DRAM", 2e10)


def test_of_several_formats_each_product_is_held_against_its_own_peak() -> None:
    """q, k and v of 8 rows, then of the last row alone: FP32 at 1e11, and the head in int8 at 4e11."""
    layer, head = 2 * 8 * 64 * 192 + 2 * 64 * 64 + 2 * 3 * 64 * 128, 2 * 64 * 256
    used = efficiency(replace(DESIGN, weights="fp32 head:int8"), measured(1e-3, 1e-3), core_like())
    assert used.peak_flops_per_s == pytest.approx((layer + head) / (layer / 1e11 + head / 4e11))
    assert efficiency(replace(DESIGN, weights="int4 head:int8"), measured(1e-3, 1e-3), core_like()).mfu is None


def test_a_format_without_a_measured_peak_has_no_mfu() -> None:
    assert efficiency(replace(DESIGN, weights="int4"), measured(1e-3, 1e-3), core_like()).mfu is None

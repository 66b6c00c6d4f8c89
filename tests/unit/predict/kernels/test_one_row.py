"""Narrower weights read fewer bytes: at one request they are not slower, whatever a kernel does with one row."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.kernels import times_of
from chipwise.predict.kernels.one_row import served_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.request import Request

DATA_CENTRE = (
    "b200-sxm", "b300-sxm", "gb200", "gb300", "gh200", "h100-nvl", "h100-pcie", "h100-sxm", "h200-nvl", "h200-sxm",
    "l4", "l40", "l40s", "rtx-pro-6000-server",
)  # fmt: skip
MODELS = ("Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-14B")


def test_the_list_is_that_of_nvidias_data_centre_chips_with_fp8() -> None:
    for sheet in datasheet.load_all():
        passive = sheet.kind == "gpu" and not any(word in sheet.title for word in ("GeForce", "RTX", "TITAN", "Quadro"))
        if sheet.vendor == "NVIDIA" and passive and "fp8" in sheet.peak_flops_per_s:
            assert sheet.name in DATA_CENTRE


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "trtllm"])
def test_fp8_is_never_slower_than_bf16_at_one_request(runtime: str) -> None:
    """Half the bytes of weights, and at most one small kernel a product more: 1 % of margin for what launches cost.

    SGLang's FP8 kernels of the RTX PRO 6000 are left out: up to 256 rows they were timed slower than 16 bits, 1.4 to
    2.3 times in the median, whatever the number of rows.
    """
    devices = [name for name in DATA_CENTRE if (runtime, name) != ("sglang", "rtx-pro-6000-server")]
    cases = [(model, device) for model in MODELS for device in devices]
    wide, narrow = (
        estimates(
            [
                Request(model=model, deployment=Deployment(device=device, runtime=runtime, weights=weights))
                for model, device in cases
            ],
            hypothetical=True,
        )
        for weights in ("bf16", "fp8")
    )
    for case, bf16, fp8 in zip(cases, wide, narrow, strict=True):
        assert isinstance(bf16, CostEstimate), case
        assert isinstance(fp8, CostEstimate), case
        assert fp8.tpot_s <= 1.01 * bf16.tpot_s, case


def test_one_row_takes_no_longer_than_two() -> None:
    """vLLM's FP8 on a B200: 18.6 µs for one row of 256 x 256 in the tables, 5.3 for two."""
    sheet = datasheet.load("b200-sxm")
    op = Matmul(m=np.array([1, 2, 16]), k=256, n=256, weights="fp8", activations="bf16")
    alone, served = times_of(op, sheet).latency_s, served_times(op, sheet).latency_s
    assert alone[0] == pytest.approx(18.6e-6, rel=0.1)
    assert alone[1] == pytest.approx(5.3e-6, rel=0.1)
    assert served.tolist() == [alone[1], alone[1], alone[2]]


def test_what_is_no_outlier_stays_as_it_was_timed() -> None:
    for device, stack in (("h100-sxm", "vllm"), ("b200-sxm", "sglang"), ("l40s", "trtllm")):
        for weights in ("bf16", "fp8"):
            op = Matmul(m=1, k=4096, n=4096, weights=weights, activations="bf16")
            sheet = datasheet.load(device)
            assert served_times(op, sheet, stack=stack) == times_of(op, sheet, stack=stack)
    norm = NormOp(rows=1, width=4096)
    assert served_times(norm, datasheet.load("b200-sxm")) == times_of(norm, datasheet.load("b200-sxm"))

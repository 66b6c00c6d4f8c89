"""Experts one after another: what a loop costs, against one grouped call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import gemm, times_of
from chipwise.predict.kernels.looped import BESIDE
from chipwise.predict.kernels.times import launch_s

H100 = datasheet.load("h100-sxm")
QWEN = ExpertsOp(
    tokens=16, d_model=2048, width=768, experts=128, local_experts=128, topk=8, weights="bf16", activations="bf16"
)


def test_one_expert_is_its_products_and_a_few_launches() -> None:
    """All 64 tokens through the only expert: gate and up of 64 x 2048 x 768, down of 64 x 768 x 2048.

    The law by which tokens fall on experts is a sum over quantiles, good to a few hundredths.
    """
    op = replace(QWEN, tokens=64, experts=1, local_experts=1, topk=1, grouped=False)
    into, out = (
        gemm.times(Matmul(m=64, k=k, n=n, weights="bf16", activations="bf16"), H100).latency_s
        for k, n in ((2048, 768), (768, 2048))
    )
    found = times_of(op, H100)
    assert found.latency_s == pytest.approx(float(2 * into + out + BESIDE * launch_s(H100)), rel=0.04)


def test_many_small_experts_take_longer_one_by_one() -> None:
    grouped, looped = times_of(QWEN, H100), times_of(replace(QWEN, grouped=False), H100)
    assert looped.latency_s > 3 * grouped.latency_s
    assert looped.doubt is not None  # nobody timed it


def test_more_tokens_meet_more_experts() -> None:
    op = replace(QWEN, tokens=np.array([1, 4, 16, 64]), grouped=False)
    assert np.all(np.diff(times_of(op, H100).latency_s) > 0)


def test_the_work_is_the_same_either_way() -> None:
    looped = replace(QWEN, grouped=False)
    assert looped.work() == QWEN.work()
    assert (QWEN.kind, looped.kind) == ("experts", "looped_experts")

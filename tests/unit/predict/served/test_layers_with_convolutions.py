"""Convolutions between norm and block are kernels of a served pass too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.hardware import datasheet
from chipwise.model.arch.arch import uniform
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import grouped, time_groups
from chipwise.predict.served.request import Request

ARCH = uniform(vocab_size=512, d_model=64, depth=3, heads=2, kv_heads=1, head_size=32, ffn_width=128)


@pytest.mark.parametrize(("device", "runtime"), [("h100-sxm", "vllm"), ("xeon-8480-plus:1-core", "onnxruntime")])
def test_each_convolution_is_a_kernel_that_takes_time(device: str, runtime: str) -> None:
    """Four taps before attention and three before the feed-forward, in three layers: six kernels more."""
    with_taps = replace(ARCH, layers=tuple(replace(layer, attention_conv=4, ffn_conv=3) for layer in ARCH.layers))
    found = []
    for arch in (ARCH, with_taps):
        (group,), _ = grouped(
            [Request(model=arch, deployment=Deployment(device=datasheet.load(device), runtime=runtime, weights="fp32"))]
        )
        found += time_groups([group])
    plain, taps = found
    for phase in ("prefill", "decode"):
        assert getattr(taps, phase).kernels == getattr(plain, phase).kernels + 6
        assert getattr(taps, phase).latency_s[0] > getattr(plain, phase).latency_s[0]

"""Models that transcribe, on data sheets: stretches, modules with a norm of their own, and the real-time factor."""

from __future__ import annotations

import numpy as np
import pytest

import chipwise
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import grouped
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.request import Request


def transcriber(*, chunk: int | None = None, module: ConvModule | None = None) -> ArchSpec:
    """Width 64 over 3.2 s: 320 frames of 40 bands, shortened to 80 positions; one layer."""
    stem = SoundStem(seconds=3.2, rate=100.0, channels=40, convs=(frame_conv(64, 2), frame_conv(64, 2)))
    attention = Attention(
        heads=2, kv_heads=2, head_size=32, qkv_bias=True, out_bias=True, rope=False, causal=False, chunk=chunk
    )
    ffn = FeedForward(width=128, activation="gelu", gated=False, bias=True)
    return ArchSpec(
        stem=stem,
        head=Ctc(count=21),
        d_model=64,
        layers=(Layer(attention=attention, ffn=ffn, conv=module),),
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=True,
        positions="learned",
    )


def parts_of(arch: ArchSpec) -> list:
    """The kernels of a pass on an H100."""
    groups, errors = grouped([Request(model=arch, deployment=Deployment(device="h100-sxm", runtime="onnxruntime"))])
    assert not errors
    asked = groups[0].prefill()
    return list(lower_pass(asked.setting, asked.step))


def test_stretches_are_sequences_of_their_own() -> None:
    """Four stretches of 20 positions instead of one sequence of 80: a quarter of the pairs."""
    whole, parts = (
        next(part.op for part in parts_of(transcriber(chunk=chunk)) if isinstance(part.op, AttentionOp))
        for chunk in (None, 20)
    )
    sizes = [np.ravel(each).tolist() for op in (whole, parts) for each in (op.batch, op.query_tokens)]
    assert sizes == [[1], [80], [4], [20]]


def test_the_products_are_those_of_the_exported_graph() -> None:
    """Multiply-adds of stem, layers and head: what a data sheet is charged for is what is exported."""
    arch = transcriber(chunk=20, module=ConvModule(taps=7, norm="layer"))
    served = sum(p.count * float((p.op.m * p.op.k * p.op.n).sum()) for p in parts_of(arch) if isinstance(p.op, Matmul))
    graph = lower(Design(arch=arch), Workload(prompt_tokens=1, new_tokens=1), Phase.PREFILL)
    exported = sum(placed.op.m * placed.op.k * placed.op.n for placed in graph if isinstance(placed.op, Matmul))
    assert served == exported


def test_a_norm_that_is_not_folded_is_a_kernel() -> None:
    def norms(module: ConvModule) -> int:
        return sum(isinstance(part.op, NormOp) for part in parts_of(transcriber(module=module)))

    assert norms(ConvModule(taps=7, norm="layer")) - norms(ConvModule(taps=7)) == 1


def test_the_real_time_factor_is_the_pass_over_its_sound() -> None:
    found = chipwise.estimate(transcriber(), device="rtx-4090")
    assert found.metrics["rtf"].value == pytest.approx(found.ttft_s / 3.2)

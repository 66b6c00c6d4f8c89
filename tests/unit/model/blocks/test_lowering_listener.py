"""Published models that hear as the operators of the graph that is exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.measure.worker import requested
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.sound.published import encoder_of
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.lower import lower
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimate
from chipwise.predict.served.request import Request

ONE = Workload(prompt_tokens=1, new_tokens=1)


def lowered(arch: ArchSpec, weights: str = "fp32") -> OpGraph:
    return lower(Design(arch=arch, weights=weights), ONE, Phase.PREFILL)


def test_flops_of_whispers_encoder_are_those_counted_by_hand() -> None:
    """Tiny, 30 s: 3,000 frames of 80 bands, 1,500 positions of 384, four layers."""
    graph = lowered(encoder_of(resolve("openai/whisper-tiny")))
    t, d = 1500, 384
    matrices = 2 * (2 * t * 3 * 80 * d + t * 3 * d * d) + 4 * 2 * t * 12 * d * d
    assert sum(2 * item.op.m * item.op.k * item.op.n for item in graph.ops if isinstance(item.op, Matmul)) == matrices
    total = sum(item.op.work().flops for item in graph.ops)
    assert total == pytest.approx(matrices + 4 * 4 * t * t * d, rel=0.02)  # and scores and values; the rest is small


@pytest.mark.parametrize("name", ["facebook/wav2vec2-base-960h", "facebook/hubert-large-ll60k", "openai/whisper-base"])
def test_flops_are_those_of_the_model_on_other_devices(name: str) -> None:
    """Two lowerings of one model, made for a data sheet and for the exported graph, count within 2 %."""
    arch = encoder_of(resolve(name))
    here = sum(item.op.work().flops for item in lowered(arch).ops)
    there = estimate(Request(model=arch, deployment=Deployment(device="l4"), prompt_tokens=1, new_tokens=1))
    assert here == pytest.approx(sum(part.work.flops * part.count for part in there.prefill), rel=0.02)


@pytest.mark.parametrize("name", ["facebook/wav2vec2-base-960h", "openai/whisper-tiny"])
def test_every_weight_is_read_once(name: str) -> None:
    """Matrices and convolutions of the lowered graph have the parameters of the model but for norms, and for Whisper's
    table of positions, which is added."""
    arch = encoder_of(resolve(name))
    read = sum(item.op.work().weight_bytes for item in lowered(arch).ops) / 4
    table = 1500 * 384 if "whisper" in name else 0
    assert read == pytest.approx(arch.parameters() - table, rel=0.001)


def test_int8_is_of_matrices_alone() -> None:
    arch = encoder_of(resolve("openai/whisper-tiny"))
    formats = {item.place: item.op.weights for item in lowered(arch, "int8").ops if isinstance(item.op, Matmul)}
    assert {formats["stem.convs.0"], formats["stem.convs.1"]} == {"fp32"}
    assert {formats[f"layers.{i}.{each}"] for i in range(4) for each in ("attention.qkv", "ffn.up")} == {"int8"}


def test_a_model_that_is_not_exported_is_not_lowered() -> None:
    with pytest.raises(Unsupported, match="cannot be lowered"):
        lowered(resolve("nvidia/parakeet-ctc-0.6b"))


@pytest.mark.parametrize(
    ("name", "seconds", "given", "positions"),
    [("facebook/wav2vec2-base-960h", 0.5, (8000,), 24), ("openai/whisper-tiny", 0.4, (80, 40), 20)],
)
def test_the_runtime_opens_what_is_exported(
    name: str, seconds: float, given: tuple[int, ...], positions: int, tmp_path: Path
) -> None:
    """A sound goes in, and a row for each position comes out; the file says of how many seconds."""
    arch = encoder_of(resolve(name)).hearing(seconds)
    arch = replace(arch, layers=arch.layers[:1])
    path = export(Design(arch=arch), random_weights(arch, seed=0), tmp_path / "model.onnx")
    session = OnnxRuntime().open(path, capacity=2, batch=2, threads=1, options={})
    sound = requested(session, np.random.default_rng(0), batch=2, prompt=1)
    assert sound.shape == (2, *given)
    assert session.facts["seconds"] == seconds
    width = arch.outputs if isinstance(arch.head, Ctc) else arch.d_model
    out = session.prefill(sound)
    assert out.shape == (2, positions, width)
    assert np.isfinite(out).all()
    assert out.std() > 0

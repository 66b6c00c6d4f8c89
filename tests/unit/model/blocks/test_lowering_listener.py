"""Published models that hear as operators, for predictions on this machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.sound.published import LISTENER, encoder_of
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.published.read import resolve
from chipwise.model.walk.built import require_built
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes
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


def test_whispers_encoder_is_a_model_of_its_own() -> None:
    """Of Whisper tiny's 37.76 M parameters 8.21 M: 4 layers of 384, two convolutions, 1,500 positions."""
    arch = encoder_of(resolve("openai/whisper-tiny"))
    layer = 4 * 384**2 + 3 * 384 + 8 * 384**2 + 5 * 384 + 4 * 384
    convs = 3 * 80 * 384 + 384 + 3 * 384**2 + 384
    assert arch.parameters() == 4 * layer + convs + 1500 * 384 + 2 * 384 == 8_208_384
    assert encoder_of(arch) is arch


def test_what_is_not_lowered_is_named() -> None:
    with pytest.raises(Unsupported, match="it does not take audio"):
        LISTENER.require(resolve("gpt2"), work="lowered", lowered=True)
    arch = resolve("facebook/wav2vec2-base-960h")
    layer = replace(arch.layers[0], attention=replace(arch.layers[0].attention, causal=True))
    with pytest.raises(Unsupported, match=r"layers\[0\]\.attention\.causal = True"):
        lowered(replace(arch, layers=(layer,)))


@pytest.mark.parametrize("name", ["facebook/wav2vec2-base-960h", "facebook/dinov2-small"])
def test_published_encoders_are_predicted_and_not_exported(name: str) -> None:
    """The message says what to do: their own tools write ONNX files, which chipwise measures."""
    arch = resolve(name)
    assert lowered(arch).ops
    with pytest.raises(Unsupported, match="export it to ONNX with other tools and measure that file"):
        require_built(arch, work="measured")
    with pytest.raises(Unsupported, match="does not export a published"):
        weight_shapes(arch)


def test_layers_that_nothing_reads_are_not_run() -> None:
    """LLaVA reads the states before CLIP's last layer: 23 of 24 attentions, and no norm after them."""
    tower = resolve("llava-hf/llava-1.5-7b-hf").towers[0]
    ops = lowered(tower).ops
    assert sum(isinstance(item.op, AttentionOp) for item in ops) == len(tower.layers) - 1 == 23
    assert not any(item.place == "norm" for item in ops)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Qwen/Qwen2-VL-2B-Instruct", "positions = 'rope'"),
        ("google/gemma-3-4b-pt", "a projector whose norm"),
        ("timm/eva02_tiny_patch14_224", "pooling = 'mean'"),
    ],
)
def test_what_no_image_encoder_is_lowered_with_is_named(name: str, missing: str) -> None:
    arch = resolve(name)
    with pytest.raises(Unsupported, match=missing):
        IMAGE_ENCODER.require(arch.towers[0] if arch.towers else arch, work="lowered", lowered=True)

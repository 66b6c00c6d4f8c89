"""Transcribing models: all implementations agree; parameters and work by pencil; unsupported ones are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from chipwise.deploy.export.onnx import random_weights
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import States
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.sound.form import TRANSCRIBER, frame_conv
from chipwise.model.kinds.sound.frames.module import Frames
from chipwise.model.kinds.sound.stem import Ctc, SoundConv, SoundStem
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import ConvOp, Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.weights import weight_shapes
from chipwise.predict.cost.memory import memory_parts
from support.archs import sound_archs
from support.form_suite import SoundSuite

SOUND = Workload(prompt_tokens=1, new_tokens=1)


class TestTranscribers(SoundSuite):
    """Any small transcribing model."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return sound_archs()


def transcriber(*, taps: int = 0, chunk: int | None = None, strides: tuple[int, int] = (1, 2)) -> ArchSpec:
    """Width 16 over 40 frames of 10 bands; one layer: two heads of 8, perhaps a module, a feed-forward of 24."""
    convs = tuple(frame_conv(16, stride) for stride in strides)
    stem = SoundStem(seconds=0.4, rate=100.0, channels=10, convs=convs)
    attention = Attention(
        heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False, chunk=chunk
    )
    layer = Layer(
        attention=attention,
        ffn=FeedForward(width=24, activation="gelu", gated=False, bias=True),
        conv=ConvModule(taps=taps, norm="layer") if taps else None,
    )
    return ArchSpec(
        stem=stem,
        head=Ctc(count=6),
        d_model=16,
        layers=(layer,),
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=True,
        positions="learned",
    )


def test_parameters_by_pencil() -> None:
    """Convolutions 3·10·16 + 16 and 3·16·16 + 16, 20 positions, attention 4·(256 + 16), FFN 2·384 + 40, three norms."""
    ends = 3 * 10 * 16 + 16 + 3 * 256 + 16 + 20 * 16 + 6 * 17
    assert transcriber().parameters() == ends + 4 * 272 + 2 * 384 + 40 + 3 * 32
    module = 3 * 256 + 32 + 16 + (7 * 16 + 16) + 32  # matrices and biases, the filter, its norm
    assert transcriber(taps=7).parameters() - transcriber().parameters() == module + 32  # and a norm before it


def test_work_by_pencil() -> None:
    """40 frames, then 20: 40·30·16 and 20·48·16 products in the stem; a filter of 7 taps sees 7 of each channel."""
    graph = lower(Design(arch=transcriber(taps=7)), SOUND, Phase.PREFILL)
    products = {placed.place: placed.op for placed in graph if isinstance(placed.op, Matmul)}
    assert (products["stem.frames.0"].m, products["stem.frames.0"].k) == (40, 30)
    assert (products["stem.frames.1"].m, products["stem.frames.1"].k) == (20, 48)
    assert (products["head.logits"].m, products["head.logits"].n) == (20, 6)
    (taps,) = (placed.op for placed in graph if isinstance(placed.op, ConvOp))
    assert taps.work().flops == 20 * 16 * (2 * 7 + 1)


def test_stretches_see_themselves_alone() -> None:
    """Four stretches of five positions: each query meets 5 keys instead of 20, and nothing else changes."""
    whole, parts = (lower(Design(arch=transcriber(chunk=chunk)), SOUND, Phase.PREFILL) for chunk in (None, 5))
    (one,), (four,) = ([p.op for p in graph if isinstance(p.op, AttentionOp)] for graph in (whole, parts))
    assert (one.batch, one.query_tokens, four.batch, four.query_tokens) == (1, 20, 4, 5)
    from chipwise.model.walk.module import build

    model = build(transcriber(chunk=5), seed=0).eval()
    layer = model.layers["0"]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((1, 20, 16), generator=generator)
    changed = x.clone()
    changed[:, 7, 0] += 1.0  # of one value: norms take off what all have in common
    with torch.no_grad():
        moved = (layer(x) - layer(changed)).abs().sum(2)[0] > 0
    assert moved.nonzero().ravel().tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("stride", [1, 2])
def test_products_of_frames_are_torchs_convolutions(stride: int) -> None:
    """The matrix (D, 3 · C) is Conv1d's weight (D, C, 3) turned, with zeros beyond the ends."""
    stem = SoundStem(seconds=0.4, rate=100.0, channels=10, convs=(frame_conv(16, stride), frame_conv(16, 2)))
    frames = Frames(stem, 16)
    sound = torch.randn((2, 10, 40), generator=torch.Generator().manual_seed(0))
    x = sound
    for conv, matrix in zip(stem.convs, frames.frames, strict=True):
        weight = matrix.weight.reshape(16, 3, -1).transpose(1, 2)
        x = F.gelu(F.conv1d(x, weight, matrix.bias, stride=conv.stride, padding=1))
    np.testing.assert_allclose(frames(sound).detach(), x.transpose(1, 2).detach(), atol=1e-5)


def test_memory_holds_every_parameter_once() -> None:
    """In FP32 tables and matrices together are four bytes a parameter."""
    arch = transcriber(taps=7, chunk=5)
    parts = memory_parts(Design(arch=arch), SOUND)
    assert parts.table_bytes + parts.matrix_bytes == 4 * arch.parameters()
    assert parts.kv_bytes == 0


def test_specs_survive_files_and_weights_are_named() -> None:
    arch = transcriber(taps=7, chunk=5)
    assert from_data(to_data(arch)) == arch
    weights = random_weights(arch, seed=0)
    assert {name: value.shape for name, value in weights.items()} == weight_shapes(arch)
    assert Design(arch=arch, weights="int8").format_of("stem.frames.1.weight") == "int8"
    assert Design(arch=arch, weights="int8").format_of("layers.0.conv.into.weight") == "int8"
    for name in ("layers.0.conv.filter.weight", "layers.0.conv.norm.weight", "layers.0.conv_norm.weight"):
        assert Design(arch=arch, weights="int8").format_of(name) == "fp32"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": (Layer(attention=None, ffn=None, conv=ConvModule(taps=7)),)}, "LayerNorm"),
        ({"layers": (Layer(attention=None, ffn=None, conv=ConvModule(taps=6, norm="layer")),)}, "must be odd"),
        ({"head": States()}, "head"),
        ({"max_tokens": 25}, "25 positions are not supported for a stem that outputs 20"),
        ({"positions": "none"}, "positions"),
    ],
)
def test_what_is_not_built_is_said(changed: dict[str, object], said: str) -> None:
    arch = replace(transcriber(), **changed)  # type: ignore[arg-type]
    assert not TRANSCRIBER.builds(arch)
    with pytest.raises(Unsupported, match=said):
        TRANSCRIBER.require(arch, work="exported")


def test_other_stems_are_not_built() -> None:
    """Seven convolutions over samples (wav2vec 2.0) can only be estimated."""
    wide = SoundConv(channels=16, kernel=10, stride=5)
    stem = SoundStem(seconds=1.0, rate=16_000.0, channels=1, convs=(wide,) * 2)
    arch = replace(transcriber(), stem=stem, max_tokens=stem.tokens)
    with pytest.raises(Unsupported, match="two convolutions to the model's width"):
        lower(Design(arch=arch), SOUND, Phase.PREFILL)

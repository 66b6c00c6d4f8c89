"""Models that are no decoders: fresh weights by pencil, exported graphs against torch, images drawn by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from torch import nn

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes, States
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.denoiser import module as torch_denoiser
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.kinds.encoder.module import Encoder, hidden_of, mean_pooled
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from chipwise.model.published.read import from_config
from chipwise.model.walk.module import build
from support import archs as small
from support import form_suite

ATTENTION = Attention(heads=4, kv_heads=4, head_size=32, rope=False, causal=False)
FFN = FeedForward(width=512, activation="gelu", gated=False)
IMAGE = ArchSpec(
    stem=ImageStem(image_size=64, patch=4, channels=3),
    head=Classes(count=100, pooling="first"),
    d_model=128,
    layers=(Layer(attention=ATTENTION, ffn=FFN),) * 2,
    max_tokens=1 + 256,
    norm="layernorm",
    norm_bias=True,
    positions="learned",
)
DENOISER = replace(
    IMAGE,
    stem=ImageStem(image_size=64, patch=4, channels=3, prefix_tokens=0),
    head=Denoiser(labels=100, frequencies=64),
    max_tokens=256,
    norm_bias=False,
    norm_weight=False,
)
SOUND = ArchSpec(
    stem=SoundStem(seconds=3.2, rate=100.0, channels=40, convs=(frame_conv(128, 2), frame_conv(128, 2))),
    head=Ctc(count=100),
    d_model=128,
    layers=(Layer(attention=ATTENTION, ffn=FFN, conv=ConvModule(taps=9, norm="layer")),) * 2,
    max_tokens=80,
    norm="layernorm",
    positions="learned",
)
RANKER = ArchSpec(
    stem=RankingStem(items=500, history=8, candidates=4, width=64),
    head=Scores(),
    d_model=128,
    layers=(Layer(attention=replace(ATTENTION, causal=True, relative_buckets=9), ffn=FFN),) * 2,
    max_tokens=9,
    positions="none",
)


def spreads(model: nn.Module) -> dict[str, float]:
    """Deviation of each matrix and filter; the one value of each vector."""
    found = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if value.ndim > 1:
            found[name] = float(value.std(correction=0))
        else:
            assert (value == value[0]).all(), name
            found[name] = float(value[0])
    return found


def expected(name: str, value: torch.Tensor, small: tuple[str, ...]) -> float:
    """1/√fan-in; results of blocks by 1/√(2 · 2) for two layers; tables and heads 0.02; biases 0 and norms 1."""
    if name.endswith("bias"):
        return 0.0
    if value.ndim == 1:
        return 1.0
    if name.startswith(small) or ".positions." in name:
        return 0.02
    inside = math.prod(value.shape[1:])
    return 1 / math.sqrt(inside) / (2 if name.endswith(("out.weight", "down.weight")) else 1)


@pytest.mark.parametrize(
    ("arch", "small"),
    [
        (IMAGE, ("stem.prefix", "positions", "head")),
        (SOUND, ("positions", "head")),
    ],
)
def test_fresh_classifiers_and_transcribers(arch: ArchSpec, small: tuple[str, ...]) -> None:
    model = build(arch, seed=0)
    found = spreads(model)
    for name, value in model.named_parameters():
        assert found[name] == pytest.approx(expected(name, value, small), rel=0.15 if value.numel() < 2000 else 0.05), (
            name
        )
    again, other = (build(arch, seed=seed).head.weight for seed in (0, 1))
    assert torch.equal(model.head.weight, again)
    assert not torch.equal(model.head.weight, other)


def test_a_fresh_ranker_begins_without_distances() -> None:
    """Tables of 1/√width, biases of distances and of products 0."""
    model = build(RANKER, seed=0)
    found = spreads(model)
    for name, value in model.named_parameters():
        plain = 0.0 if name.startswith("positions") else expected(name, value, ())
        assert found[name] == pytest.approx(plain, rel=0.12), name
    assert float(model.head.weight.detach().std()) == pytest.approx(1 / math.sqrt(128), rel=0.2)
    assert torch.equal(model.head.weight, build(RANKER, seed=0).head.weight)


def test_a_fresh_denoiser_begins_as_nothing() -> None:
    """Modulations and head 0, labels and readers of numbers 0.02, the rest 1/√fan-in; positions are waves."""
    model = build(DENOISER, seed=0)
    for name, value in model.named_parameters():
        if name.endswith("bias") or name.startswith(("modulations", "head")):
            assert not value.any(), name
        elif name.startswith(("labels", "told")):
            assert float(value.detach().std()) == pytest.approx(0.02, rel=0.05), name
        elif name != "positions.weight":
            assert float(value.detach().std()) == pytest.approx(1 / math.sqrt(value[0].numel()), rel=0.05), name
    table = model.positions.weight.detach().numpy()
    turns = 10_000.0 ** -(np.arange(32) / 32)
    for place in (0, 1, 16, 16 * 5 + 3):
        y, x = divmod(place, 16)
        waves = [np.sin(y * turns), np.cos(y * turns), np.sin(x * turns), np.cos(x * turns)]
        assert table[place] == pytest.approx(np.concatenate(waves), abs=1e-5)
    odd = torch_denoiser._waves(DENOISER.stem, 10).numpy()  # two turns a wave, and two values left over
    assert odd.shape == (256, 10)
    assert not odd[:, 8:].any()
    assert odd[16] == pytest.approx([math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01), 0, 0, 1, 1, 0, 0])


class Fall:
    """Velocity of an image: the time, less itself; 0.5 more for label 1 and 3 more without any."""

    labels = SimpleNamespace(num_embeddings=3)

    def __call__(self, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        told = 0.5 * (label == 1) + 3.0 * (label == 2)
        return (time + told)[:, None] - x


def test_images_are_drawn_by_the_steps_of_their_solver() -> None:
    """Two steps of a half from 1: by hand with and without guidance, and with the velocity before."""

    def drawn(**fields: Any) -> float:
        served = Denoiser(labels=2, steps=2, **fields)
        return float(draw(Fall(), torch.ones(1, 1), torch.tensor([1]), served)[0, 0])

    first = 0.5 - 1.0  # at time 0
    half = 1.0 + 0.5 * first
    second = 0.5 + 0.5 - half
    assert drawn() == pytest.approx(half + 0.5 * second)
    assert drawn(solver="multistep") == pytest.approx(half + 0.75 * second - 0.25 * first)
    without = 3.0 - 1.0
    guided = without + 2 * (first - without)
    there = 1.0 + 0.5 * guided
    label, none = 1.0 - there, 3.5 - there
    assert drawn(guidance=2.0) == pytest.approx(there + 0.5 * (none + 2 * (label - none)))
    decoded = Fall()
    decoded.decoder = lambda image: 10 * image
    served = Denoiser(labels=2, steps=1)
    plain = float(draw(Fall(), torch.ones(1, 1), torch.tensor([0]), served)[0, 0])
    assert float(draw(decoded, torch.ones(1, 1), torch.tensor([0]), served)[0, 0]) == pytest.approx(10 * plain)


FEW = settings(
    max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
CHECKS: dict[str, tuple[Any, Callable[[ArchSpec], None]]] = {
    "images": (small.image_archs(), form_suite.FormSuite().check_export),
    "questions": (small.question_archs(), form_suite.QuestionSuite().check_export),
    "questions beside images": (small.crossing_archs(), form_suite.QuestionSuite().check_export),
    "denoisers": (small.denoiser_archs(), form_suite.DenoiserSuite().check_export),
    "sounds": (small.sound_archs(), form_suite.SoundSuite().check_export),
    "rankings": (small.ranking_archs(), form_suite.RankingSuite().check_export),
    "candidates alone": (small.ranking_archs(), form_suite.check_alone),
}


@pytest.mark.parametrize("name", CHECKS)
def test_exported_graphs_compute_what_torch_computes(name: str) -> None:
    """Four drawn models of each form; other tests of the blocks draw more."""
    archs, check = CHECKS[name]

    def checked(arch: ArchSpec) -> None:
        check(arch)

    FEW(given(arch=archs)(checked))()


def test_what_encoders_make_of_padded_texts() -> None:
    """The mean is of what is text, padding has a score of minus infinity, the pooler is of the first position."""
    states = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [50.0, 50.0]]])
    assert mean_pooled(states, torch.tensor([[1, 1, 0]])).tolist() == [[2.0, 4.0]]
    assert mean_pooled(states, None).tolist() == [[18.0, pytest.approx(58 / 3)]]
    assert hidden_of(torch.tensor([[1, 0]])).tolist() == [[[[0.0, -math.inf]]]]
    assert hidden_of(None) is None
    small = {
        "model_type": "bert", "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "max_position_embeddings": 8, "hidden_act": "gelu", "type_vocab_size": 2,
    }  # fmt: skip
    model = Encoder(from_config(small)).eval()
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        embedded = model.embed(tokens, torch.tensor([[0, 1, 1]]))
        plain = model.embedding(tokens) + model.positions.weight[:3] + model.token_types(torch.tensor([[0, 1, 1]]))
        assert torch.allclose(embedded, model.embedding_norm(plain))
        zero = model.embedding(tokens) + model.positions.weight[:3] + model.token_types.weight[0]
        assert torch.allclose(model.embed(tokens), model.embedding_norm(zero))
        if model.pooler is not None:
            states = model(tokens)
            assert torch.allclose(model.pooled(states), torch.tanh(model.pooler(states[:, 0])))
    headless = Encoder(replace(from_config(small), head=States()))
    with pytest.raises(Unsupported, match="has no pooler"):
        headless.pooled(states)


def test_a_question_is_read_behind_its_image() -> None:
    """The answer depends on words, projector and positions, and is read at the last position only."""
    arch = replace(
        IMAGE,
        d_model=32,
        layers=(Layer(attention=replace(ATTENTION, heads=2, kv_heads=2, head_size=16), ffn=FeedForward(width=64)),),
        stem=QuestionStem(
            image=ImageStem(image_size=16, patch=8, prefix_tokens=0, bias=False),
            projector=Projector(widths=(32, 32)),
            question=Question(words=9, tokens=3),
        ),
        max_tokens=4 + 3,
        head=replace(IMAGE.head, pooling="last"),
    )
    model = form_suite.shaken(arch, seed=0)
    image, words = form_suite.inputs_of(arch, batch=2)
    with torch.no_grad():
        answer = model(image, words)
        assert answer.shape == (2, arch.outputs)
        assert not torch.allclose(answer, model(image.flip(0), words))
        assert not torch.allclose(answer, model(image, (words + 1) % 9))
        x = model.projector(model.stem(image))
        x = torch.cat((x, model.words(words)), dim=1) + model.positions.weight
        for layer in model.layers.values():
            x = layer(x)
        torch.testing.assert_close(answer, model.head(model.norm(x[:, -1])))

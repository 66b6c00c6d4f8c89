"""Denoisers: all forms agree; modulation, steps and counts by pencil."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import States, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.modulation.waves import wave_tables
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.module import build
from chipwise.model.walk.slicing import cuts
from chipwise.predict.cost.memory import memory_parts
from support.archs import denoiser_archs
from support.form_suite import DenoiserSuite, inputs_of, shaken

REQUEST = Workload(prompt_tokens=1, new_tokens=1)


class TestDenoisers(DenoiserSuite):
    """Any small denoiser."""

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        return denoiser_archs()


def dit(
    *,
    d_model: int,
    depth: int,
    heads: int,
    patch: int,
    size: int = 32,
    channels: int = 4,
    labels: int = 1001,
    outputs: int = 2,
    frequencies: int = 256,
    steps: int = 8,
) -> ArchSpec:
    """A DiT on latents, by default as in the paper."""
    stem = ImageStem(image_size=size, patch=patch, channels=channels, prefix_tokens=0)
    attention = Attention(
        heads=heads, kv_heads=heads, head_size=d_model // heads, rope=False, causal=False, qkv_bias=True, out_bias=True
    )
    ffn = FeedForward(width=4 * d_model, gated=False, activation="gelu_tanh", bias=True)
    return ArchSpec(
        stem=stem,
        head=Denoiser(labels=labels, outputs=outputs, frequencies=frequencies, steps=steps),
        d_model=d_model,
        layers=(Layer(attention=attention, ffn=ffn),) * depth,
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_weight=False,
        norm_eps=1e-6,
        positions="learned",
    )


SMALL = {"d_model": 16, "depth": 2, "heads": 2, "patch": 4, "size": 8, "channels": 1, "labels": 3, "outputs": 1}


@pytest.mark.parametrize(
    ("name", "d_model", "depth", "heads", "patch", "count"),
    [
        # What facebookresearch/DiT's train.py prints for 1,000 classes and latents of 32 x 32 x 4;
        # arXiv:2212.09748, table 1, rounds them to 33 M, 130 M, 458 M and 675 M.
        ("DiT-S/2", 384, 12, 6, 2, 32_963_360),
        ("DiT-B/2", 768, 12, 12, 2, 130_512_416),
        ("DiT-L/2", 1024, 24, 16, 2, 458_102_816),
        ("DiT-XL/2", 1152, 28, 16, 2, 675_129_632),
    ],
)
def test_published_sizes_of_dit(name: str, d_model: int, depth: int, heads: int, patch: int, count: int) -> None:
    assert dit(d_model=d_model, depth=depth, heads=heads, patch=patch).parameters() == count, name


def test_a_denoiser_by_pencil() -> None:
    # 4 patches of 16 pixels; a matrix for 2 layers of 2 blocks of 3 vectors of 16 values, and 2 for the end: 224
    arch = dit(**SMALL)
    assert not arch.reads_tokens
    assert arch.stem.tokens == 4
    ops = {placed.place: placed.op for placed in lower(Design(arch=arch), REQUEST, Phase.PREFILL)}
    modulation = ops["told.modulation"]
    assert isinstance(modulation, Matmul)
    assert (modulation.m, modulation.k, modulation.n) == (1, 16, 224)
    pixels = ops["head.pixels"]
    assert isinstance(pixels, Matmul)
    assert (pixels.m, pixels.k, pixels.n) == (4, 16, 16)


def test_every_weight_is_stored_once_in_fp32() -> None:
    arch = dit(**SMALL)
    parts = memory_parts(Design(arch=arch), REQUEST)
    assert parts.table_bytes + parts.matrix_bytes == 4 * arch.parameters()


def test_a_new_denoiser_gives_no_velocity_and_its_layers_do_nothing() -> None:
    arch = dit(**SMALL)
    model = build(arch, seed=0)
    images, times, labels = inputs_of(arch, batch=2)
    assert not model(images, times, labels).any()
    assert torch.equal(draw(model, images, labels, in_steps(3)), images)


def in_steps(count: int, **how: Any) -> Denoiser:
    return Denoiser(labels=3, steps=count, **how)


class Known(torch.nn.Module):
    """A descent with scripted moves."""

    def __init__(self, velocity: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.velocity = velocity

    def forward(self, image: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.velocity(image, time)


@pytest.mark.parametrize(("steps", "shift"), [(2, 1.0), (5, 1.0), (2, 2.0), (4, 3.0), (3, 0.5)])
def test_multistep_is_exact_but_for_its_first_step_where_the_velocity_grows_evenly(steps: int, shift: float) -> None:
    """x' = 2 t leads to 1 at time 1. The first step, by Euler, stays where it is and so misses its size squared."""
    start, labels = torch.zeros((1, 1, 8, 8)), torch.zeros(1, dtype=torch.long)
    even = Known(lambda image, time: 2 * time[:, None, None, None] * torch.ones_like(image))
    served = in_steps(steps, solver="multistep", shift=shift)
    first = 1 / (1 + shift * (steps - 1))
    found = draw(even, start, labels, served)  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.full_like(start, 1 - first**2))
    assert sum(move.size for move in served.moves()) == pytest.approx(1)
    by_euler = draw(even, start, labels, in_steps(steps))  # type: ignore[arg-type]
    torch.testing.assert_close(by_euler, torch.full_like(start, 1 - 1 / steps))


def test_steps_follow_a_straight_path_exactly_and_a_bent_one_better_the_more_there_are() -> None:
    arch = dit(**SMALL)

    start, labels = torch.ones((1, 1, 8, 8)), torch.zeros(1, dtype=torch.long)
    straight = Known(lambda image, time: torch.full_like(image, 2.0))
    for steps in (1, 3):
        found = draw(straight, start, labels, in_steps(steps))  # type: ignore[arg-type]
        torch.testing.assert_close(found, torch.full_like(start, 3.0))
    grows = Known(lambda image, time: image)  # x' = x: e after a time of 1
    errors = [float((draw(grows, start, labels, in_steps(n)) - math.e).abs().max()) for n in (1, 2, 4, 8)]  # type: ignore[arg-type]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] == pytest.approx(math.e - 2, abs=1e-6)
    assert arch.passes == 8


def test_times_are_written_as_dit_writes_them() -> None:
    turns, phases = (np.array(part) for part in wave_tables(6))
    found = np.sin(0.3 * turns + phases)
    freqs = np.exp(-math.log(10_000) * np.arange(3) / 3)
    np.testing.assert_allclose(found, np.concatenate([np.cos(300 * freqs), np.sin(300 * freqs)]), atol=1e-12)


def test_what_is_told_changes_what_is_drawn() -> None:
    arch = replace(dit(**SMALL), head=Denoiser(labels=3, frequencies=16, steps=4))
    model = shaken(arch, seed=0)
    images, times, labels = inputs_of(arch, batch=2)
    first = model(images, times, labels)
    for other in (
        model(images, times.flip(0) + 0.1, labels),
        model(images, times, (labels + 1) % 3),
    ):
        assert not torch.allclose(first, other)


def test_steps_are_no_matter_of_weights_or_of_training() -> None:
    few, many = dit(**SMALL, steps=1), dit(**SMALL, steps=16)
    assert few.digest != many.digest
    assert few.as_trained().digest == many.as_trained().digest
    assert few.parameters() == many.parameters()
    assert cuts(few, many)
    assert from_data(to_data(many)) == many


def test_what_is_no_denoiser_is_refused_with_its_reason() -> None:
    arch = dit(**SMALL)
    assert DENOISER.builds(arch)
    assert not DENOISER.builds(replace(arch, norm_weight=True))
    with pytest.raises(Unsupported, match="variance"):
        DENOISER.require(dit(d_model=16, depth=1, heads=2, patch=2), work="built in torch")
    with pytest.raises(Unsupported, match="does not denoise"):
        DENOISER.require(replace(arch, head=States()), work="built in torch")
    with pytest.raises(SpecError, match="shortcut training is no longer part of chipwise"):
        Denoiser(labels=1, steps=4, shortcut=True)
    with pytest.raises(SpecError, match="stem"):
        replace(arch, stem=Tokens(vocab_size=8))
    with pytest.raises(SpecError, match="denoiser: does not fit"):
        io.from_data(io.to_data(arch) | {"head": "classes", "classes": 3, "pooling": "mean"})
    bare = replace(arch, layers=(replace(arch.layers[0], ffn=None),) * 2)
    with pytest.raises(SpecError, match="vectors"):
        cuts(bare, arch)

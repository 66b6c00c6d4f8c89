"""The sampler in a denoiser's folder: any number of steps, solver, shift and guidance draws as chipwise does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chipwise.deploy.export.hf import save_pretrained
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.module import draw
from chipwise.model.kinds.image.stem import ImageStem
from support.form_suite import shaken

transformers = pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")
STEM = ImageStem(image_size=6, patch=2, channels=2, prefix_tokens=0)
LAYER = Layer(
    attention=Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False),
    ffn=FeedForward(width=24, gated=False, activation="gelu"),
)
ARCH = ArchSpec(
    stem=STEM,
    head=Denoiser(labels=3, frequencies=8, steps=4),
    d_model=16,
    layers=(LAYER, LAYER),
    max_tokens=STEM.tokens,
    norm="layernorm",
    norm_weight=False,
    norm_eps=1e-6,
    positions="learned",
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps": 1},
        {"guidance": 2.5},
        {"solver": "multistep"},
        {"solver": "multistep", "steps": 2, "shift": 3.0},
        {"shift": 0.5, "steps": 3},
    ],
    ids=lambda changes: " ".join(f"{name} {value}" for name, value in changes.items()) or "plain",
)
@torch.no_grad()
def test_a_folder_draws_the_images_that_the_model_draws(changes: dict[str, Any], tmp_path: Path) -> None:
    assert isinstance(ARCH.head, Denoiser)
    arch = replace(ARCH, head=replace(ARCH.head, **changes))
    assert isinstance(arch.head, Denoiser)
    ours, labels = shaken(arch, seed=1), torch.tensor([0, 2])
    save_pretrained(arch, ours.state_dict(), None, tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True).eval()
    noise = torch.randn((2, *STEM.shape), generator=torch.Generator().manual_seed(2))
    drawn = draw(ours, noise, labels, arch.head)
    torch.testing.assert_close(theirs.generate(labels, seed=2), drawn, atol=1e-4, rtol=1e-4)

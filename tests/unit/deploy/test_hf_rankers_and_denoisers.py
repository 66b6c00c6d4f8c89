"""Folders of ranking models and denoisers: the modelling files that ship compute what chipwise's own models do."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from chipwise.deploy.hf import load_pretrained, save_pretrained
from chipwise.deploy.torch_denoiser import draw
from chipwise.spec import ArchSpec
from chipwise.testing.denoiser_suite import asked, denoiser_archs
from chipwise.testing.denoiser_suite import shaken as shaken_denoiser
from chipwise.testing.ranking_suite import random_requests, ranking_archs
from chipwise.testing.ranking_suite import shaken as shaken_ranker
from chipwise.testing.specs import check_each

transformers = pytest.importorskip("transformers", reason="transformers loads the folders")


def opened(arch: ArchSpec, ours: torch.nn.Module, folder: str) -> Any:
    """The folder's model, as transformers opens it."""
    save_pretrained(arch, ours.state_dict(), None, folder)
    assert load_pretrained(folder)[0].digest == arch.digest
    return transformers.AutoModel.from_pretrained(Path(folder), trust_remote_code=True).eval()


@torch.no_grad()
def same_scores(arch: ArchSpec) -> None:
    ours, ids = shaken_ranker(arch, seed=1), random_requests(arch, batch=3)
    with tempfile.TemporaryDirectory() as folder:
        theirs = opened(arch, ours, folder)
        torch.testing.assert_close(theirs(ids).scores, ours(ids), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def same_images(arch: ArchSpec) -> None:
    assert arch.denoiser is not None
    ours, (images, times, labels, sizes) = shaken_denoiser(arch, seed=1), asked(arch, batch=3)
    with tempfile.TemporaryDirectory() as folder:
        theirs = opened(arch, ours, folder)
        velocity = ours(images, times, labels, sizes)
        torch.testing.assert_close(theirs(images, times, labels, sizes), velocity, atol=1e-4, rtol=1e-4)
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
        drawn = draw(ours, noise, labels, arch.denoiser)
        torch.testing.assert_close(theirs.generate(labels, seed=2), drawn, atol=1e-3, rtol=1e-3)


def test_any_ranking_model_brings_its_modelling_file() -> None:
    check_each(same_scores, ranking_archs(), examples=8)


def test_any_denoiser_brings_its_modelling_file_and_sampler() -> None:
    check_each(same_images, denoiser_archs(), examples=8)

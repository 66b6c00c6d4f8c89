"""The sampler in a denoiser's folder: any number of steps, solver, shift and guidance draws as chipwise does."""

from __future__ import annotations

import tempfile

import pytest
import torch

from chipwise.deploy.hf import save_pretrained
from chipwise.deploy.torch_denoiser import draw
from chipwise.spec import ArchSpec
from chipwise.testing.denoiser_suite import asked, denoiser_archs, shaken
from chipwise.testing.specs import check_each

transformers = pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")


@torch.no_grad()
def same_images(arch: ArchSpec) -> None:
    assert arch.denoiser is not None
    ours, (images, _, labels, _) = shaken(arch, seed=1), asked(arch, batch=3)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(arch, ours.state_dict(), None, folder)
        theirs = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(2))
    drawn = draw(ours, noise, labels, arch.denoiser)
    torch.testing.assert_close(theirs.generate(labels, seed=2), drawn, atol=1e-3, rtol=1e-3)


def test_a_folder_draws_the_images_that_the_model_draws() -> None:
    check_each(same_images, denoiser_archs(), examples=5)

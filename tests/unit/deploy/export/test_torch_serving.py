"""The serving module against the reference module, and its files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.runtimes.torch_serving import Serving, export, load
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from support.block_suite import random_tokens, shaken
from support.models import arch_specs

ARCH = uniform(vocab_size=40, d_model=32, depth=2, heads=2, kv_heads=1, ffn_width=64, max_tokens=16)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(arch=arch_specs(), masked=st.booleans())
def test_a_cache_in_place_gives_the_logits_of_one_full_pass(arch, masked) -> None:
    """Windows, shared layers and absent blocks included; looking at the whole cache behind a mask changes nothing."""
    model, tokens = shaken(arch, seed=0), random_tokens(arch, length=12, batch=2)
    serving = Serving(model, capacity=16, batch=2)
    with torch.inference_mode():
        wanted = model(tokens)[0]
        found = [serving(tokens[:, :5], torch.arange(5), 5, False)]
        found += [
            serving(tokens[:, i : i + 1], torch.tensor([i]), 16 if masked else i + 1, masked) for i in range(5, 12)
        ]
    torch.testing.assert_close(torch.stack(found, dim=1), wanted[:, 4:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_prompts_of_one_or_two_tokens_are_read_alike(length: int) -> None:
    """Four query heads over two KV heads: after each token of a short prompt, the logits of one full pass."""
    arch = uniform(vocab_size=40, d_model=32, depth=2, heads=4, kv_heads=2, ffn_width=64, max_tokens=16)
    model, tokens = shaken(arch, seed=0), random_tokens(arch, length=length + 2, batch=2)
    serving = Serving(model, capacity=16, batch=2)
    with torch.inference_mode():
        wanted = model(tokens)[0]
        found = [serving(tokens[:, :length], torch.arange(length), length, False)]
        found += [serving(tokens[:, i : i + 1], torch.tensor([i]), i + 1, False) for i in (length, length + 1)]
    torch.testing.assert_close(torch.stack(found, dim=1), wanted[:, length - 1 :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("weights", "step"), [("fp32", 0.0), ("bf16", 2**-8), ("fp16", 2**-11)])
def test_files_hold_the_weights_in_their_format(tmp_path, weights, step) -> None:
    given_weights = random_weights(ARCH, seed=0)
    path = export(Design(arch=ARCH, weights=weights), given_weights, tmp_path / "model.safetensors")
    model, facts = load(path)
    assert (facts["name"], facts["weights"]) == (ARCH.name, weights)
    for name, value in model.state_dict().items():
        assert np.abs(value.float().numpy() - given_weights[name]).max() <= step * np.abs(given_weights[name]).max()


def test_formats_without_kernels_are_refused(tmp_path) -> None:
    with pytest.raises(Unsupported, match="fp32, bf16, fp16"):
        export(Design(arch=ARCH, weights="int4"), random_weights(ARCH, seed=0), tmp_path / "model.safetensors")


def test_files_of_others_are_refused(tmp_path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\x00")
    for name in ("other", "broken", "missing"):
        with pytest.raises(SpecError, match=name):
            load(tmp_path / f"{name}.safetensors")


def test_wrong_weights_are_named(tmp_path) -> None:
    weights = random_weights(ARCH, seed=0)
    weights["norm.weight"] = np.ones(3, np.float32)
    with pytest.raises(SpecError, match=r"norm\.weight"):
        export(Design(arch=ARCH), weights, tmp_path / "model.safetensors")

"""Swin and DeiT as transformers computes them: read from its folders, exported, and written back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chipwise.api.testing.form_suite import FormSuite, inputs_of
from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.image.hf_swin import swin_config
from chipwise.model.walk.module import load

transformers = pytest.importorskip("transformers")
SWIN: dict[str, Any] = {
    "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2, 2], "num_heads": [1, 2, 4], "window_size": 4,
}  # fmt: skip
DEIT = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
MODELS = {
    "Swin": ("SwinConfig", "SwinForImageClassification", SWIN),
    "Swin, squares filled up": (
        "SwinConfig",
        "SwinForImageClassification",
        SWIN | {"image_size": 36, "depths": [1, 2], "num_heads": [1, 2], "window_size": 5, "hidden_act": "relu"},
    ),
    "Swin without biases of queries": (
        "SwinConfig",
        "SwinForImageClassification",
        SWIN | {"depths": [2, 1], "num_heads": [1, 2], "qkv_bias": False, "mlp_ratio": 2.0},
    ),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", DEIT | {"intermediate_size": 24}),
}


def written(name: str, folder: Path) -> Any:
    """A model of random weights, none at its first value, which transformers wrote into ``folder``."""
    config, kind, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(num_labels=3, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of the module and of the exported graph, to 1e-4; int8 is near."""
    model = written(name, tmp_path)
    arch, weights = load_pretrained(tmp_path)
    images = inputs_of(arch, batch=3)[0]
    with torch.no_grad():
        expected, ours = model(images).logits.numpy(), load(arch, weights)(images).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-4)
    for batch in (1, 3):
        session = OnnxClassifier(export(Design(arch=arch), weights, tmp_path / "model.onnx"), batch=batch)
        np.testing.assert_allclose(session.prefill(images[:batch].numpy()), expected[:batch], atol=1e-4, rtol=1e-4)
    narrow = OnnxClassifier(export(Design(arch=arch, weights="int8"), weights, tmp_path / "int8.onnx"), batch=3)
    off = narrow.prefill(images.numpy()) - expected
    assert 0 < np.abs(off).max() < 0.2 * np.abs(expected).max()
    FormSuite().check_flops(arch)


def test_a_swin_is_written_as_transformers_own(tmp_path: Path) -> None:
    model = written("Swin", tmp_path / "theirs")
    arch, weights = load_pretrained(tmp_path / "theirs")
    save_pretrained(arch, weights, None, tmp_path / "ours")
    again = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is transformers.SwinForImageClassification
    images = inputs_of(arch, batch=2)[0]
    with torch.no_grad():
        torch.testing.assert_close(again(images).logits, model(images).logits, atol=1e-6, rtol=1e-6)
    found, kept = load_pretrained(tmp_path / "ours")
    assert found.digest == arch.digest
    assert all(np.array_equal(kept[name], value) for name, value in weights.items())


def test_stages_that_swin_has_not_are_refused(tmp_path: Path) -> None:
    written("Swin", tmp_path)
    arch, _ = load_pretrained(tmp_path)
    layers = tuple(replace(layer, attention=replace(layer.attention, square=2)) for layer in arch.layers)
    with pytest.raises(Unsupported, match="is no Swin"):
        swin_config(replace(arch, stem=replace(arch.stem, stages=(), stem_norm=False), max_tokens=256))
    with pytest.raises(Unsupported, match="stages that differ from Swin's"):
        swin_config(replace(arch, layers=layers))


def test_norms_that_differ_from_those_of_merges_are_refused(tmp_path: Path) -> None:
    config = transformers.SwinConfig(num_labels=3, layer_norm_eps=1e-3, **SWIN)
    transformers.SwinForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"eps 0\.001"):
        load_pretrained(tmp_path)


def test_an_unknown_weight_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from chipwise.errors import SpecError

    written("Swin", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["swin.encoder.layers.0.blocks.7.attention.output.dense.bias"] = np.zeros(8, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match=r"layers\.7\.attention\.out\.bias"):
        load_pretrained(tmp_path)


def test_the_published_tiny_one_is_built() -> None:
    """28.29 M parameters (Liu et al. 2021, table 1), every weight named."""
    from chipwise.model.published.read import resolve
    from chipwise.model.walk.weights import weight_shapes

    arch: ArchSpec = resolve("swin_tiny_patch4_window7_224")
    assert sum(int(np.prod(shape)) for shape in weight_shapes(arch).values()) == arch.parameters() == 28_288_354

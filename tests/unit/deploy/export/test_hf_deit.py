"""DeiT as transformers computes it, read from its folders and exported; Swin is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier
from chipwise.errors import Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.walk.module import load
from support.form_suite import FormSuite, inputs_of

transformers = pytest.importorskip("transformers")
DEIT = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def written(folder: Path) -> Any:
    """A model of random weights, none at its first value, which transformers wrote into ``folder``."""
    torch.manual_seed(0)
    config = transformers.DeiTConfig(num_labels=3, intermediate_size=24, **DEIT)
    model = transformers.DeiTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    model.save_pretrained(folder)
    return model


def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Of the module and of the exported graph, to 1e-4; int8 is near."""
    model = written(tmp_path)
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


def test_an_unknown_weight_is_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from chipwise.errors import SpecError

    written(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["deit.encoder.layer.7.attention.output.dense.bias"] = np.zeros(16, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match=r"layers\.7\.attention\.out\.bias"):
        load_pretrained(tmp_path)


def test_stages_on_finer_grids_are_refused(tmp_path: Path) -> None:
    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
    transformers.SwinConfig(num_labels=3, architectures=["SwinForImageClassification"], **sizes).save_pretrained(
        tmp_path
    )
    with pytest.raises(
        Unsupported, match=r"before the model's own \(Swin\) are not supported; chipwise estimate can still predict"
    ):
        load_pretrained(tmp_path)

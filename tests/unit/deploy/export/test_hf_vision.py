"""Image classifiers in Hugging Face folders: transformers' own ViT, and the modelling file for all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.deploy.export.onnx import export, random_weights
from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.hf_vit import is_vit, vit_config
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.walk.module import load
from support.archs import crossed
from support.form_suite import inputs_of, shaken

transformers = pytest.importorskip("transformers")
PATCHES = ImageStem(image_size=16, patch=4)
HEADS = Attention(heads=2, kv_heads=2, head_size=8, rope=False, causal=False, qkv_bias=True, out_bias=True)
FFN = FeedForward(width=24, activation="gelu", gated=False, bias=True)
VIT = ArchSpec(
    stem=PATCHES,
    head=Classes(count=5),
    d_model=16,
    layers=(Layer(attention=HEADS, ffn=FFN),) * 2,
    max_tokens=PATCHES.tokens,
    norm="layernorm",
    norm_bias=True,
    norm_eps=1e-6,
    positions="learned",
)
CONVS = ImageStem(image_size=16, patch=4, convs=(6,), prefix_tokens=0)
SIGNAL = ImageStem(image_size=16, patch=4, channels=6, convs=(5,), axes=1)
OTHERS = {
    "convolutions and the mean": replace(
        VIT, stem=CONVS, head=replace(VIT.head, pooling="mean"), max_tokens=CONVS.tokens
    ),
    "biases in some layers": replace(
        VIT,
        stem=replace(PATCHES, prefix_tokens=0),
        head=replace(VIT.head, pooling="mean"),
        max_tokens=16,
        positions="none",
        layers=(
            Layer(attention=replace(HEADS, relative_buckets=49), ffn=FFN),
            Layer(attention=HEADS, ffn=FFN),
        ),
    ),
    "biases with a class token": replace(
        VIT, positions="none", layers=(Layer(attention=replace(HEADS, relative_buckets=52), ffn=FFN),) * 2
    ),
    "no positions": replace(VIT, positions="none"),
    "a signal": replace(VIT, stem=SIGNAL, max_tokens=SIGNAL.tokens),
    "gated": replace(VIT, layers=(Layer(attention=HEADS, ffn=replace(FFN, gated=True)),)),
    "a layer without attention": replace(VIT, layers=(Layer(attention=None, ffn=FFN), VIT.layers[0])),
    "rmsnorm": replace(VIT, norm="rmsnorm", norm_bias=False),
}


def weights_of(arch: ArchSpec) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in shaken(arch, seed=1).state_dict().items()}


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_a_vit_is_loaded_by_transformers_own_class(activation: str, tmp_path: Path) -> None:
    """Logits of torch, ONNX Runtime and transformers agree to 1e-4."""
    ffn = replace(FFN, activation=activation)
    arch = replace(VIT, layers=(Layer(attention=HEADS, ffn=ffn),) * 2)
    weights, images = weights_of(arch), inputs_of(arch, batch=3)[0]
    save_pretrained(arch, weights, None, tmp_path)
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    assert type(model) is transformers.ViTForImageClassification
    onnx = OnnxClassifier(export(Design(arch=arch), weights, tmp_path / "model.onnx"), batch=3)
    with torch.no_grad():
        theirs, ours = model.eval()(images).logits, load(arch, weights)(images)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(onnx.prefill(images.numpy()), ours, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("arch", OTHERS.values(), ids=OTHERS)
def test_any_other_classifier_brings_its_modelling_file(arch: ArchSpec, tmp_path: Path) -> None:
    weights, images = weights_of(arch), inputs_of(arch, batch=2)[0]
    save_pretrained(arch, weights, None, tmp_path)
    auto = transformers.AutoModelForImageClassification
    if not arch.reads_tokens and arch.stem.axes == 1:
        auto = transformers.AutoModelForAudioClassification
    model = auto.from_pretrained(tmp_path, trust_remote_code=True)
    with torch.no_grad():
        theirs, ours = model.eval()(images).logits, load(arch, weights)(images)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert not is_vit(arch)
    with pytest.raises(Unsupported, match="is not a ViT"):
        vit_config(arch)
    for weight, least, most in (("fp32", 0, 1e-4), ("int8", 1e-6, 0.2)):
        onnx = OnnxClassifier(export(Design(arch=arch, weights=weight), weights, tmp_path / "model.onnx"), batch=2)
        off = np.abs(onnx.prefill(images.numpy()) - ours.numpy()).max()
        assert least <= off < most * np.abs(ours.numpy()).max()


@pytest.mark.parametrize("which", [None, (True, True), (False, True)], ids=["prefix", "cross", "one layer crosses"])
@pytest.mark.parametrize("merge", [{}, {"pool": 2}, {"join": 2}], ids=["apart", "averaged", "joined"])
def test_a_model_of_questions_brings_its_modelling_file(
    merge: dict[str, int], which: tuple[bool, ...] | None, tmp_path: Path
) -> None:
    """Torch, ONNX Runtime in fp32 and transformers agree to 1e-4; int8 answers most alike."""
    stem = replace(PATCHES, prefix_tokens=0, bias=False)
    projector, question = Projector(widths=(16, 16), **merge), Question(words=11, tokens=5)
    asked = QuestionStem(image=stem, question=question, projector=projector)
    arch = replace(VIT, stem=asked, head=replace(VIT.head, pooling="last"), max_tokens=asked.tokens)
    arch = arch if which is None else crossed(arch, which)
    weights, (images, words) = weights_of(arch), inputs_of(arch, batch=2)
    save_pretrained(arch, weights, None, tmp_path)
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, trust_remote_code=True)
    onnx = OnnxClassifier(export(Design(arch=arch), weights, tmp_path / "model.onnx"), batch=2)
    with torch.no_grad():
        theirs, ours = model.eval()(images, words).logits, load(arch, weights)(images, words)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(onnx.prefill(images.numpy(), words.numpy()), ours, atol=1e-4, rtol=1e-4)
    narrow = OnnxClassifier(export(Design(arch=arch, weights="int8"), weights, tmp_path / "int8.onnx"), batch=2)
    off = narrow.prefill(images.numpy(), words.numpy()) - ours.numpy()
    assert 0 < np.abs(off).max() < 0.2 * np.abs(ours.numpy()).max()
    found, _ = load_pretrained(tmp_path)
    assert found.digest == arch.digest


@pytest.mark.parametrize("arch", [VIT, OTHERS["biases in some layers"]], ids=["ViT", "biases"])
def test_a_folder_gives_back_what_was_saved(arch: ArchSpec, tmp_path: Path) -> None:
    weights = weights_of(arch)
    save_pretrained(arch, weights, None, tmp_path)
    found, kept = load_pretrained(tmp_path)
    assert found.digest == arch.digest
    assert kept.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(kept[name], value)


def test_a_folder_that_transformers_wrote_is_loaded(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    arch, weights = load_pretrained(tmp_path)
    images = inputs_of(arch, batch=2)[0]
    with torch.no_grad():
        torch.testing.assert_close(load(arch, weights)(images), model(images).logits, atol=1e-5, rtol=1e-5)


def test_random_weights_are_a_fresh_models(tmp_path: Path) -> None:
    arch = OTHERS["convolutions and the mean"]
    weights = random_weights(arch, seed=0)
    session = OnnxClassifier(export(Design(arch=arch, weights="int8"), weights, tmp_path / "model.onnx"))
    assert np.isfinite(session.prefill(inputs_of(arch, batch=1)[0].numpy())).all()


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    weights = weights_of(VIT)
    del weights["positions.weight"]
    with pytest.raises(SpecError, match=r"positions\.weight"):
        export(Design(arch=VIT), weights, tmp_path / "model.onnx")

"""Models that read images: published sizes, transformers' own classes as peers, stems by pencil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chipwise.core.errors import SpecError
from chipwise.spec import ArchSpec, Attention, FeedForward, ImageStem, Layer, families
from chipwise.spec.hf import read_config, resolve
from chipwise.spec.io import from_data, to_data

# Millions of parameters as timm's results table lists them (huggingface/pytorch-image-models, results/*.csv): models
# of ImageNet-1k with their classifier, DINOv2 and SigLIP without one.
TIMM = {
    "vit_tiny_patch16_224": 5.72,
    "vit_small_patch16_224": 22.05,
    "vit_small_patch32_224": 22.88,
    "vit_base_patch16_224": 86.57,
    "vit_base_patch32_224": 88.22,
    "vit_base_patch16_384": 86.86,
    "vit_base_patch32_384": 88.30,
    "vit_large_patch16_224": 304.33,
    "vit_large_patch16_384": 304.72,
    "vit_large_patch32_384": 306.63,
    "vit_giant_patch14_224": 1012.61,
    "vit_gigantic_patch14_224": 1844.44,
    "deit_tiny_patch16_224": 5.72,
    "deit_small_patch16_224": 22.05,
    "deit_base_patch16_224": 86.57,
    "deit_base_patch16_384": 86.86,
    "deit_tiny_distilled_patch16_224": 5.91,
    "deit_small_distilled_patch16_224": 22.44,
    "deit_base_distilled_patch16_224": 87.34,
    "beit_base_patch16_224": 86.53,
    "beit_large_patch16_224": 304.43,
    "vit_small_patch14_dinov2": 22.06,
    "vit_base_patch14_dinov2": 86.58,
    "vit_large_patch14_dinov2": 304.37,
    "vit_giant_patch14_dinov2": 1136.48,
    "vit_base_patch16_siglip_224": 92.88,
    "vit_so400m_patch14_siglip_384": 428.23,
}
# Exact counts: safetensors metadata on the Hub; CLIP's of CLIPVisionModelWithProjection, OpenCLIP's of its model cards.
EXACT = {
    "google/vit-base-patch16-224": 86_567_656,
    "google/vit-large-patch16-224": 304_326_632,
    "timm/vit_huge_patch14_224": 632_045_800,
    "facebook/deit-small-distilled-patch16-224": 22_436_432,
    "facebook/dinov2-base": 86_580_480,
    "facebook/dinov2-giant": 1_136_480_768,
    "microsoft/beit-base-patch16-224": 86_530_984,
    "openai/clip-vit-base-patch32": 87_849_216,
    "openai/clip-vit-base-patch16": 86_192_640,
    "openai/clip-vit-large-patch14": 303_966_208,
    "google/siglip-base-patch16-224": 92_884_224,
}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 8,
}


@pytest.mark.parametrize(("name", "millions"), TIMM.items())
def test_sizes_are_those_of_timms_table(name: str, millions: float) -> None:
    assert resolve(name).parameters() / 1e6 == pytest.approx(millions, abs=0.0051)


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_sizes_are_the_published_ones(name: str, count: int) -> None:
    assert resolve(name).parameters() == count


@pytest.mark.parametrize(
    ("config", "model", "changes"),
    [
        ("ViTConfig", "ViTForImageClassification", {"num_labels": 7}),
        ("ViTConfig", "ViTForImageClassification", {"qkv_bias": False, "num_channels": 1}),
        ("ViTConfig", "ViTModel", {}),
        ("DeiTConfig", "DeiTForImageClassification", {"num_labels": 7}),
        ("DeiTConfig", "DeiTForImageClassificationWithTeacher", {"num_labels": 7}),
        ("Dinov2Config", "Dinov2Model", {"mlp_ratio": 3}),
        ("Dinov2Config", "Dinov2Model", {"use_swiglu_ffn": True}),
        ("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel", {"num_register_tokens": 3}),
        ("BeitConfig", "BeitForImageClassification", {"num_labels": 7, "use_relative_position_bias": True}),
        ("BeitConfig", "BeitForImageClassification", {"use_absolute_position_embeddings": True}),
        ("CLIPVisionConfig", "CLIPVisionModel", {}),
        ("CLIPVisionConfig", "CLIPVisionModelWithProjection", {"projection_dim": 24}),
        ("SiglipVisionConfig", "SiglipVisionModel", {}),
    ],
)
def test_any_config_has_the_parameters_that_transformers_creates(
    config: str, model: str, changes: dict[str, Any]
) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    sizes = {name: size for name, size in SIZES.items() if "Dinov2" not in config or name != "intermediate_size"}
    made = getattr(transformers, config)(**sizes | changes)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in getattr(transformers, model)(made).parameters())
    reading = read_config({**made.to_dict(), "architectures": [model]})
    assert reading.arch.parameters() == expected
    assert not [note for note in reading.notes if "not known to chipwise" in note]


IMAGE_MODELS = [name for name in families.names() if resolve(name).stem is not None]


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_known_models_have_the_parameters_that_transformers_creates(name: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = families.config_of(name)
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(made)
    assert resolve(name).parameters() == sum(parameter.numel() for parameter in model.parameters())


def small(**changes: Any) -> ArchSpec:
    """A tiny classifier of 28 x 28 grey images."""
    attention = Attention(
        heads=2, kv_heads=2, head_size=8, rope=False, causal=False, square=changes.pop("square", None)
    )
    stem = ImageStem(image_size=28, patch=4, channels=1, convs=(6,), prefix_tokens=changes.pop("prefix", 1))
    fields: dict[str, Any] = {
        "vocab_size": 0,
        "d_model": 16,
        "layers": (Layer(attention=attention, ffn=FeedForward(width=20, gated=False)),),
        "max_tokens": stem.tokens,
        "norm": "layernorm",
        "positions": "learned",
        "head": "classes",
        "classes": 10,
        "stem": stem,
    }
    return ArchSpec(**fields | changes)


def test_a_stem_by_pencil() -> None:
    """28 pixels, halved to 14 by one convolution of 6 channels, in patches of 2 x 2 x 6: 7 x 7 of them and a token."""
    stem = ImageStem(image_size=28, patch=4, channels=1, convs=(6,))
    assert (stem.sides, stem.edge, stem.values, stem.grid, stem.tokens) == ((28, 14), 2, 24, 7, 50)
    assert stem.parameters(16) == (9 * 1 + 1) * 6 + 24 * 16 + 16 + 16


def test_parameters_of_a_small_classifier_by_pencil() -> None:
    stem = (9 + 1) * 6 + 24 * 16 + 16 + 16
    attention, ffn, norms = 4 * 16 * 16, 2 * 16 * 20, 3 * 16
    assert small().parameters() == stem + 50 * 16 + attention + ffn + norms + 10 * 16 + 10


def test_pixels_that_fill_no_patch_are_left_out() -> None:
    """SigLIP so400m: 384 = 27 * 14 + 6."""
    assert ImageStem(image_size=384, patch=14).patches == 27**2


def test_a_text_model_keeps_its_identity() -> None:
    """What a model of images adds is left out of files and digests of models of tokens."""
    assert not {"stem", "classes", "pooling", "projection"} & to_data(resolve("gpt2")).keys()


def test_a_classifier_survives_its_file() -> None:
    arch = small(prefix=0, pooling="mean", square=7)
    assert from_data(to_data(arch)) == arch
    assert from_data(to_data(arch)).digest == arch.digest != small().digest


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"classes": 0}, "classes"),
        ({"head": "none"}, "classes"),
        ({"vocab_size": 5}, "vocab_size"),
        ({"head": "lm", "classes": 0}, "head"),
        ({"prefix": 0}, "pooling"),
        ({"square": 7}, "square"),  # the class token lies in no square
        ({"prefix": 0, "pooling": "mean", "square": 3}, "square"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        small(**changes)
    assert (caught.value.field or "").endswith(field)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"patch": 33}, "patch"),
        ({"convs": (8, 8, 8)}, "patch"),
        ({"convs": (0,)}, "convs"),
        ({"channels": 0}, "channels"),
    ],
)
def test_stems_that_cannot_be_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        replace(ImageStem(image_size=32, patch=4), **changes)
    assert caught.value.field == field

"""Models that read images: transformers' own classes as peers, stems by pencil."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chipwise import estimate
from chipwise.errors import SpecError
from chipwise.model.arch import io
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.published import families
from chipwise.model.published.read import read_config, resolve

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 8,
}
SWIN: dict[str, Any] = {"image_size": 64, "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": [1, 2, 1]}
SWIN |= {"num_heads": [2, 4, 4]}


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
        ("SwinConfig", "SwinForImageClassification", SWIN | {"num_labels": 7}),
        ("SwinConfig", "SwinForImageClassification", SWIN | {"qkv_bias": False, "depths": [1, 1], "num_heads": [2, 2]}),
        ("Swinv2Config", "Swinv2ForImageClassification", SWIN | {"num_labels": 7}),
    ],
)
def test_any_config_has_the_parameters_that_transformers_creates(
    config: str, model: str, changes: dict[str, Any]
) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    sizes = {name: size for name, size in SIZES.items() if "Dinov2" not in config or name != "intermediate_size"}
    sizes = {} if "Swin" in config else sizes
    made = getattr(transformers, config)(**sizes | changes)
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in getattr(transformers, model)(made).parameters())
    reading = read_config({**made.to_dict(), "architectures": [model]})
    assert reading.arch.parameters() == expected
    assert not [note for note in reading.notes if "not known to chipwise" in note]


IMAGE_MODELS = [
    name
    for name in families.names()
    if isinstance(resolve(name).stem, ImageStem) and families.config_of(name)["model_type"] != "eva02"
]  # EVA02 is timm's; its peer is timm's table, in test_published_sizes.py


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
    return io.from_data(fields | changes)


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
        ({"prefix": 0, "pooling": "mean", "square": 8}, "square"),  # 7 x 7 patches
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


@pytest.mark.parametrize(
    ("name", "gmacs"),
    [
        ("swin_tiny_patch4_window7_224", 4.5),
        ("swin_small_patch4_window7_224", 8.7),
        ("swin_base_patch4_window7_224", 15.4),
    ],
)
def test_the_work_of_swin_is_that_of_its_paper(name: str, gmacs: float) -> None:
    """Multiply-adds of an image, Liu et al. 2021, table 1; ours count softmaxes and norms too, 2 % more."""
    cost = estimate(name, device="rtx-4090")
    assert sum(op.work.flops * op.count for op in cost.prefill) / 2e9 == pytest.approx(gmacs, rel=0.03)


@pytest.mark.parametrize(
    ("name", "gmacs"),
    [("eva02_tiny_patch14_336", 4.68), ("eva02_base_patch14_448", 107.11), ("eva02_large_patch14_clip_336", 191.34)],
)
def test_the_work_of_eva02_is_that_of_timms_table(name: str, gmacs: float) -> None:
    """Multiply-adds of an image (benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv); ours count softmaxes too."""
    cost = estimate(name, device="rtx-4090")
    assert sum(op.work.flops * op.count for op in cost.prefill) / 2e9 == pytest.approx(gmacs, rel=0.03)


def test_an_eva02_block_by_hand() -> None:
    """A layer of 6 values in 2 heads: no bias of keys, a gated feed-forward of 16, norms inside both blocks."""
    fields = {"model_type": "eva02", "img_size": 28, "embed_dim": 6, "depth": 1, "num_heads": 2, "num_classes": 3}
    arch = read_config({**fields, "scale_mlp": True, "scale_attn_inner": True}).arch
    attention = 4 * 36 + 2 * 6 + 6 + 2 * 6
    ffn = 3 * 6 * 16 + 2 * 16 + 6 + 2 * 16
    stem = 14 * 14 * 3 * 6 + 6 + 6 + 5 * 6
    assert arch.parameters() == stem + attention + ffn + 3 * 12 + 7 * 3
    assert (arch.head.pooling, arch.stem.tokens) == ("mean", 5)
    with pytest.raises(SpecError, match="must be avg or token"):
        read_config({**fields, "global_pool": "map"})


def test_a_pyramids_stages_are_counted_by_hand() -> None:
    """Two stages of one layer: 64 positions of 8 values, then 16 of 16; squares of 4 by 4 have 7 x 7 distances."""

    def layer(d: int, heads: int) -> int:
        return 4 * d * (d + 1) + 49 * heads + 2 * 4 * d * d + 5 * d + 4 * d

    fields = {"model_type": "swin", "image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4]}
    arch = read_config(
        {**fields, "patch_size": 4, "window_size": 4, "num_labels": 3, "architectures": ["SwinForImageClassification"]}
    ).arch
    stem = 16 * 3 * 8 + 8 + 2 * 8
    merge = 32 * 16 + 2 * 32
    assert arch.parameters() == stem + layer(8, 2) + merge + layer(16, 4) + 2 * 16 + 17 * 3
    assert (arch.stem.first_grid, arch.stem.grid, arch.stem.tokens) == (8, 4, 16)

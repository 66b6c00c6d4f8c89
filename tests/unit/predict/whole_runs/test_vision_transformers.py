"""Vision transformers: published parameter counts and multiply-adds, laws, and where the sizes are wrong."""

from __future__ import annotations

import pytest

from chipwise.errors import SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.predict.whole_runs.sums import value_of
from chipwise.predict.whole_runs.vision import FLOPS_A_JOULE, Setup, VisionTransformer, constants, step_s
from chipwise_fitting.vision import counted_law

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}


def vit(name: str, *, patch: int = 16, image_size: int = 224) -> VisionTransformer:
    width, depth, heads = SIZES[name]
    return VisionTransformer(
        image_size=image_size, patch=patch, width=width, depth=depth, heads=heads, mlp_hidden=4 * width
    )


@pytest.mark.parametrize(
    ("name", "patch", "image_size", "millions", "gmacs"),
    [  # timm's tables: parameters, multiply-adds of an image
        ("tiny", 16, 224, 5.72, 1.26),
        ("small", 16, 224, 22.05, 4.61),
        ("base", 16, 224, 86.57, 17.58),
        ("base", 16, 384, 86.86, 55.54),
        ("base", 32, 224, 88.22, 4.41),
        ("large", 16, 224, 304.33, 61.60),
    ],
)
def test_parameters_and_multiply_adds_are_the_published_ones(
    name: str, patch: int, image_size: int, millions: float, gmacs: float
) -> None:
    model = vit(name, patch=patch, image_size=image_size)
    assert model.parameters == pytest.approx(1e6 * millions, rel=0.002)
    assert (model.product_flops + model.attention_flops) / 2 == pytest.approx(1e9 * gmacs, rel=0.01)


def test_tokens_are_patches_and_a_class_token() -> None:
    assert vit("base").tokens == 14 * 14 + 1


@pytest.mark.parametrize("dtype", ["amp", "bf16"])
def test_more_images_take_longer_and_no_longer_each(dtype: str) -> None:
    setup = Setup(device=datasheet.load("rtx-4090"), dtype=dtype)
    times = [step_s(vit("base"), setup, batch=batch).value for batch in (1, 8, 64, 512)]
    assert times == sorted(times)
    each = [time / batch for time, batch in zip(times, (1, 8, 64, 512), strict=True)]
    assert each == sorted(each, reverse=True)


def test_a_measured_run_is_near_its_prediction() -> None:
    """timm's table: vit_base_patch16_224, 1,024 images in 303.3 ms, RTX 4090, PyTorch 2.9.1 compiled, amp."""
    found = step_s(vit("base"), Setup(device=datasheet.load("rtx-4090")), batch=1024)
    assert found.value == pytest.approx(0.3033, rel=0.08)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.3033 < found.high


def test_a_chip_of_an_unknown_maker_is_less_sure() -> None:
    known, other = (step_s(vit("base"), Setup(device=datasheet.load(name)), batch=8) for name in ("rtx-4090", "mi300x"))
    assert known.high is not None
    assert other.high is not None
    assert known.high / known.value < other.high / other.value


def test_power_bounds_the_peak() -> None:
    """The Max-Q card computes 439 TFLOP/s by its sheet and draws 300 W."""
    assert Setup(device=datasheet.load("rtx-pro-6000-maxq")).peak_flops_per_s == 300 * FLOPS_A_JOULE
    sheet = datasheet.load("rtx-3090")
    assert Setup(device=sheet).peak_flops_per_s == pytest.approx(71e12)


def test_other_image_models_go_by_their_counts() -> None:
    setup = Setup(device=datasheet.load("rtx-4090"))
    terms = constants().terms()
    small, large = (
        float(value_of(counted_law(flops, 4e7, "SwinTransformerV2", setup, 64), terms)) for flops in (9e9, 18e9)
    )
    assert small < large < 2 * small


@pytest.mark.parametrize("field", ["width", "depth", "patch"])
def test_a_size_that_is_not_above_zero_is_named(field: str) -> None:
    sizes = {"image_size": 224, "patch": 16, "width": 192, "depth": 12, "heads": 3, "mlp_hidden": 768, field: 0}
    with pytest.raises(SpecError, match=f"{field}: must be above zero"):
        VisionTransformer(**sizes)  # type: ignore[arg-type]  # sizes alone


def test_a_patch_that_does_not_fit_is_named() -> None:
    with pytest.raises(SpecError, match="patch: must be at most the image's 224 pixels"):
        vit("base", patch=256)


def test_a_device_without_such_products_is_named() -> None:
    bare = datasheet.load("hailo-10h")
    with pytest.raises(Unsupported, match="hailo-10h lists no rate for fp32"):
        step_s(vit("base"), Setup(device=bare, dtype="fp32"))

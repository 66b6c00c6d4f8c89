"""Published diffusion models: parameters of every part, and the work of a step by pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chipwise.predict.whole_runs.diffusion import KNOWN, known_name
from chipwise.predict.whole_runs.picture_models import (
    CLIP_G,
    CLIP_H,
    CLIP_L,
    CLIP_L_PROJECTED,
    LATENT_16,
    PICTURE_MODELS,
    T5_XXL,
    UMT5_XXL,
    Autoencoder,
    JointTransformer,
    TextEncoder,
    UNet,
)

# Counted by diffusers 0.42.1 (PyPI) from each model's published config on the Hub, but for DiT: by the layers' sizes
# that its paper gives (arXiv:2212.09748, table 1), which rounds them to 33, 130, 458 and 675 M. Papers and model cards
# round the others: 0.6 B (PixArt), 1.6 and 4.8 B (SANA 1.5, 4.7 counted), 2 and 2.5 B (Stable Diffusion 3 and 3.5
# medium), 8.1 B (large), 12 B (FLUX.1), 1.3 and 14 B (Wan 2.1). UNets: 860 and 865 M (Stable Diffusion 1 and 2) and
# 2.6 B (SDXL: arXiv:2307.01952, table 1).
TRANSFORMERS = {
    "dit-s-2": 32_963_360,
    "dit-b-2": 130_512_416,
    "dit-l-2": 458_102_816,
    "dit-xl-2": 675_129_632,
    "pixart-sigma": 610_856_096,
    "sana1.5_1.6b": 1_604_641_952,
    "sana1.5_4.8b": 4_721_825_952,
    "stable-diffusion-3-medium": 2_028_328_000,
    "stable-diffusion-3.5-medium": 2_243_171_520,
    "stable-diffusion-3.5-large": 8_056_627_520,
    "flux.1": 11_901_408_320,
    "flux.1-schnell": 11_891_178_560,
    "stable-diffusion-v1": 859_520_964,
    "stable-diffusion-2": 865_910_724,
    "stable-diffusion-xl": 2_567_463_684,
    "sdxl-turbo": 2_567_463_684,
    "wan2.1-t2v-1.3b": 1_418_996_800,
    "wan2.1-t2v-14b": 14_288_491_584,
}
ENCODERS = [  # counted by transformers from the published configs
    (CLIP_L, 123_060_480),
    (CLIP_L_PROJECTED, 123_650_304),
    (CLIP_G, 694_659_840),
    (CLIP_H, 340_387_840),
    (T5_XXL, 4_762_310_656),
    (UMT5_XXL, 5_680_910_336),
]


@pytest.mark.parametrize(("name", "count"), TRANSFORMERS.items())
def test_transformers_have_their_published_parameters(name: str, count: int) -> None:
    assert PICTURE_MODELS[name].transformer.parameters() == count
    assert KNOWN[name].parameters == count


@pytest.mark.parametrize(("encoder", "count"), ENCODERS, ids=lambda item: getattr(item, "name", ""))
def test_text_encoders_have_their_published_parameters(encoder: TextEncoder, count: int) -> None:
    assert encoder.parameters() == count


def test_autoencoders_have_their_published_parameters() -> None:
    """Stable Diffusion 1 and PixArt (4 channels); Stable Diffusion 3 and FLUX.1 (16); its decoder alone."""
    assert Autoencoder(latents=4).parameters() == 83_653_863
    assert LATENT_16.parameters() == 83_819_683
    assert LATENT_16.decoder_parameters() == 49_545_475


def test_modulations_are_no_work_of_positions() -> None:
    """MMDiT of one layer and width d: 12 d² for each position of image and text; 2 x 6 d² of modulation for none."""
    tiny = JointTransformer(width=10, layers=1)
    assert tiny.met() == (1200, 1200)
    assert JointTransformer(width=10, layers=1, dual=1).met() == (1600, 1200)
    large = PICTURE_MODELS["stable-diffusion-3.5-large"]
    assert sum(large.transformer.met()) < 0.7 * large.transformer.parameters()


def test_every_known_part_is_of_a_known_model() -> None:
    assert PICTURE_MODELS.keys() <= KNOWN.keys()
    assert known_name("facebook/DiT-XL-2-256") == known_name("DiT-XL/2") == "dit-xl-2"
    assert known_name("microsoft/dit-base") is None  # a transformer of documents
    for model in PICTURE_MODELS.values():
        assert min(model.parts().values()) > 0


def test_the_work_of_unets_is_the_published_one() -> None:
    """Stable Diffusion 1 at 512 x 512: 339 G multiply-adds a pass (Kim et al. 2023, arXiv:2305.15798, table 1)."""
    model = replace(KNOWN["stable-diffusion-v1"], passes=1)
    tokens = model.tokens(512, 512)
    assert tokens == 64**2
    assert model.product_flops(tokens, 1) / 2 == pytest.approx(338.7e9, rel=0.005)


def test_a_small_unet_by_pencil() -> None:
    """Widths of 8 and 16, one block a resolution, a layer of attention at the coarse one and none between the ways."""
    model = UNet(widths=(8, 16), depths=(0, 1), middle=0, blocks=1, text_width=5)

    def conv(into: int, out: int, taps: int = 9) -> int:
        return (into * taps + 1) * out

    def residual(
        into: int, out: int
    ) -> int:  # norms, the time's matrix of 32 values, and one beside where widths differ
        beside = conv(into, out, 1) if into != out else 0
        return 2 * into + 2 * out + conv(into, out) + conv(out, out) + 33 * out + beside

    d = 16
    attention = (
        8 * d + 2 * d * (d + 1) + 4 * d * d + 4 * d * d - 2 * d * d + 2 * d * 5 + 2 * d
    )  # norms, in and out, two
    attention += (d + 1) * 8 * d + (4 * d + 1) * d  # gated feed-forward of four times the width
    down = residual(8, 8) + conv(8, 8) + residual(8, 16) + attention
    between = 2 * residual(16, 16)
    up = residual(16 + 16, 16) + attention + residual(16 + 8, 16) + attention + conv(16, 16)
    up += residual(16 + 8, 8) + residual(8 + 8, 8)
    ends = conv(4, 8) + (8 + 1) * 32 + (32 + 1) * 32 + 2 * 8 + conv(8, 4)
    assert model.parameters() == down + between + up + ends
    assert list(model.seen()) == [(3 * 16, 1)]
    assert model.met()[1] == 3 * 2 * 5 * 16

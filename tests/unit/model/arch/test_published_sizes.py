"""Published sizes of models of every kind, each with its source: what chipwise counts equals them.

A number of millions is equal to half a unit of its last digit. Text models are in ``test_known_models.py`` too, where
transformers' own classes are the peer.
"""

from __future__ import annotations

import pytest

from chipwise.model.published.read import resolve

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
    "swin_tiny_patch4_window7_224": 28.29,
    "swin_small_patch4_window7_224": 49.61,
    "swin_base_patch4_window7_224": 87.77,
    "swin_base_patch4_window12_384": 87.90,
    "swin_large_patch4_window7_224": 196.53,
    "swin_large_patch4_window12_384": 196.74,
    "swinv2_tiny_window8_256": 28.35,
    "swinv2_small_window8_256": 49.73,
    "swinv2_base_window8_256": 87.92,
    "eva02_tiny_patch14_336": 5.76,
    "eva02_small_patch14_336": 22.13,
    "eva02_base_patch14_448": 87.12,
    "eva02_large_patch14_448": 305.08,
    "eva02_tiny_patch14_224": 5.50,  # from here on benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv
    "eva02_small_patch14_224": 21.62,
    "eva02_base_patch14_224": 85.76,
    "eva02_large_patch14_224": 303.27,
    "eva02_base_patch16_clip_224": 86.26,
    "eva02_large_patch14_clip_224": 304.11,
    "eva02_large_patch14_clip_336": 304.43,
}

# Exact counts: safetensors metadata on the Hub; CLIP's of CLIPVisionModelWithProjection, OpenCLIP's of its model cards;
# those of speech as transformers' own classes of these checkpoints count them, sinusoids of Whisper's encoder included.
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
    "microsoft/swin-tiny-patch4-window7-224": 28_288_354,
    "microsoft/swinv2-tiny-patch4-window8-256": 28_347_154,
    "openai/whisper-tiny": 37_760_640,
    "openai/whisper-base": 72_593_920,
    "openai/whisper-small": 241_734_912,
    "openai/whisper-medium": 763_857_920,
    "openai/whisper-large-v2": 1_543_304_960,
    "openai/whisper-large-v3": 1_543_490_560,
    "openai/whisper-large-v3-turbo": 808_878_080,
    "distil-whisper/distil-large-v3": 756_405_760,
    "facebook/wav2vec2-base-960h": 94_396_320,
    "facebook/wav2vec2-large-960h-lv60-self": 315_471_520,
    "facebook/hubert-base-ls960": 94_371_712,
    "facebook/hubert-large-ll60k": 315_438_720,
    "facebook/hubert-xlarge-ll60k": 962_497_408,
}
# Millions as papers and makers state them: the number, and half a unit of its last digit.
STATED = {
    "UsefulSensors/moonshine-tiny": (27.1, 0.05),  # arXiv:2410.15608, table 1
    "UsefulSensors/moonshine-base": (61.5, 0.05),
    "distil-whisper/distil-large-v2": (756, 0.5),  # arXiv:2311.00430, table 3
    "distil-whisper/distil-medium.en": (394, 0.5),
    "distil-whisper/distil-small.en": (166, 0.5),  # its model card
    "openai/whisper-large-v3-turbo": (809, 0.5),  # github.com/openai/whisper, README
    "nvidia/stt_en_conformer_ctc_small": (13, 0.5),  # github.com/NVIDIA/NeMo, conformer_ctc_bpe.yaml
    "nvidia/stt_en_conformer_ctc_medium": (30, 0.55),
    "nvidia/stt_en_conformer_ctc_large": (121, 0.55),
    "nvidia/parakeet-ctc-0.6b": (600, 50),  # its model card: 0.6 B
    "nvidia/parakeet-ctc-1.1b": (1_100, 50),
    "facebook/wav2vec2-xls-r-300m": (315, 0.5),  # the Hub's size of the checkpoint
}


def test_at_least_sixty_models_have_published_sizes() -> None:
    assert len({*TIMM, *EXACT, *STATED}) >= 60


@pytest.mark.parametrize(("name", "millions"), TIMM.items())
def test_sizes_are_those_of_timms_table(name: str, millions: float) -> None:
    assert resolve(name).parameters() / 1e6 == pytest.approx(millions, abs=0.0051)


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_sizes_are_the_published_ones(name: str, count: int) -> None:
    assert resolve(name).parameters() == count


@pytest.mark.parametrize(("name", "stated"), STATED.items())
def test_sizes_are_those_that_makers_state(name: str, stated: tuple[float, float]) -> None:
    millions, half = stated
    assert abs(resolve(name).parameters() / 1e6 - millions) <= half

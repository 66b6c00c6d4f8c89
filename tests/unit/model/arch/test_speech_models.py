"""Models that hear: transformers' own classes as peers, stems and costs by pencil."""

from __future__ import annotations

from typing import Any

import pytest

from chipwise import estimate
from chipwise.errors import SpecError
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.sound.stem import SoundConv, SoundStem
from chipwise.model.published import families
from chipwise.model.published.read import read_config, resolve

CLASSES = {
    "whisper": "WhisperForConditionalGeneration",
    "moonshine": "MoonshineForConditionalGeneration",
    "parakeet_ctc": "ParakeetForCTC",
    "wav2vec2-conformer": "Wav2Vec2ConformerModel",
    "wav2vec2": "Wav2Vec2Model",
    "hubert": "HubertModel",
}
KNOWN = [name for name in families.names() if families.config_of(name)["model_type"] in CLASSES]


def created(config: dict[str, Any]) -> int:
    """Parameters that transformers creates for a config."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    kind = str(config["model_type"])
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = getattr(transformers, config.get("architectures", [CLASSES[kind]])[0])(made)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_the_parameters_that_transformers_creates(name: str) -> None:
    assert resolve(name).parameters() == created(families.config_of(name))


SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FEW = {"conv_dim": [8, 12], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "wav2vec2", "feat_extract_norm": "layer", "conv_bias": True},
        {"model_type": "wav2vec2", "mask_time_prob": 0.0, "do_stable_layer_norm": True},
        {"model_type": "wav2vec2", "vocab_size": 9, "architectures": ["Wav2Vec2ForCTC"]},
        {"model_type": "hubert", "feat_proj_layer_norm": False},
        {"model_type": "wav2vec2-conformer", "conv_depthwise_kernel_size": 7},
        {"model_type": "wav2vec2-conformer", "position_embeddings_type": "rotary"},
    ],
)
def test_any_config_has_the_parameters_that_transformers_creates(changes: dict[str, Any]) -> None:
    config = {**SMALL, **FEW, "num_conv_pos_embedding_groups": 4, "num_conv_pos_embeddings": 6, **changes}
    assert read_config(config).arch.parameters() == created(config)


def test_nothing_of_a_whisper_config_is_left_unread() -> None:
    transformers = pytest.importorskip("transformers")
    reading = read_config(transformers.WhisperConfig().to_dict() | {"architectures": [CLASSES["whisper"]]})
    assert reading.notes == ()


def test_thirty_seconds_are_1500_positions_and_samples_are_cut_by_seven_strides() -> None:
    """Whisper: 3,000 frames halved. wav2vec 2.0: 160,000 samples, strides of 320 in all, the last window incomplete."""
    assert resolve("openai/whisper-tiny").encoder_stem.tokens == 1500
    assert resolve("facebook/wav2vec2-base").stem.tokens == 160_000 // 320 - 1
    assert resolve("nvidia/parakeet-ctc-0.6b").stem.tokens == 1000 // 8


def test_a_stem_is_counted_by_hand() -> None:
    """12 frames of 4 bands, both halved: 6 x 2 of 3 channels; then each channel by itself, to 3 x 1; a matrix of 3."""
    convs = (
        SoundConv(channels=3, kernel=3, stride=2, pad=1, activation="relu"),
        SoundConv(channels=3, kernel=3, stride=2, pad=1, groups=3, bias=False, activation="none"),
    )
    stem = SoundStem(seconds=0.12, rate=100, channels=4, axes=2, convs=convs, matrix=True)
    assert (stem.areas(), stem.values, stem.tokens) == ((48, 12, 3), 3, 3)
    assert stem.parameters(5) == (9 * 3 + 3) + 9 * 3 + (3 + 1) * 5


def test_a_longer_sound_costs_more_and_one_too_long_is_refused() -> None:
    short, long = (estimate("facebook/wav2vec2-base-960h", device="l4", audio_s=seconds) for seconds in (5, 20))
    assert short.metrics["sound_s"].value < long.metrics["sound_s"].value
    assert long.metrics["rtf"].value == pytest.approx(long.ttft_s / 20)
    with pytest.raises(SpecError, match="at most 30 s at once"):
        estimate("openai/whisper-tiny", device="l4", audio_s=31)
    with pytest.raises(SpecError, match="does not take audio"):
        estimate("gpt2", device="l4", audio_s=3)


def test_the_real_time_factor_of_whisper_is_its_request_over_thirty_seconds() -> None:
    found = estimate("openai/whisper-large-v3", device="h100-sxm", new=100)
    assert found.metrics["rtf"].value == pytest.approx((found.ttft_s + 100 * found.tpot_s) / 30)


def test_the_work_of_whispers_encoder_by_hand() -> None:
    """Tiny: four layers of 12 d² weights on 1,500 positions, scores and their values, two convolutions."""
    cost = estimate("openai/whisper-tiny", device="rtx-4090")
    d, n = 384, 1500
    layers = 4 * (2 * 12 * d * d * n + 4 * n * n * d)
    convs = 2 * 3 * (80 * d * 2 * n + d * d * n)
    cross = 4 * 2 * 2 * d * d * n  # keys and values that the decoder makes of it
    work = sum(op.work.flops * op.count for op in cost.prefill)
    assert work == pytest.approx(layers + convs + cross, rel=0.05)  # and softmaxes, norms, the first token


@pytest.mark.parametrize(
    "name", ["openai/whisper-tiny", "nvidia/parakeet-ctc-0.6b", "microsoft/swin-tiny-patch4-window7-224"]
)
def test_models_survive_their_file(name: str) -> None:
    arch = resolve(name)
    assert from_data(to_data(arch)) == arch


def test_a_text_model_keeps_its_identity() -> None:
    plain = to_data(resolve("t5-small" if "t5-small" in families.names() else "gpt2"))
    assert "encoder_stem" not in plain
    assert not {"first_ffn", "conv", "last_norm"} & plain["layers"][0].keys()

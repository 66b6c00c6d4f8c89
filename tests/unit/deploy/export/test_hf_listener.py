"""wav2vec 2.0, HuBERT and Whisper's encoder as transformers computes them: read from its folders and exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chipwise.deploy.export.hf import load_pretrained, require_folder
from chipwise.deploy.export.onnx import export
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.sound.published import LISTENER, encoder_of
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.model.published.read import resolve
from chipwise.model.walk.weights import weight_shapes

transformers = pytest.importorskip("transformers")
WAV2VEC2: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_dim": [8, 8],
    "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "vocab_size": 5,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 6,
    "max_source_positions": 20, "vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
BEFORE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "num_conv_pos_embeddings": 7}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "wav2vec 2.0": ("Wav2Vec2Config", "Wav2Vec2ForCTC", WAV2VEC2),
    "wav2vec 2.0, norms before blocks": ("Wav2Vec2Config", "Wav2Vec2ForCTC", WAV2VEC2 | BEFORE),
    "wav2vec 2.0 without a head": ("Wav2Vec2Config", "Wav2Vec2Model", WAV2VEC2),
    "HuBERT": ("HubertConfig", "HubertForCTC", WAV2VEC2),
    "HuBERT without a norm of features": ("HubertConfig", "HubertForCTC", WAV2VEC2 | {"feat_proj_layer_norm": False}),
    "Whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
    "Whisper without a head": ("WhisperConfig", "WhisperModel", WHISPER),
}


def written(name: str, folder: Path, **changes: Any) -> Any:
    """A model of random weights, none at its first value, which transformers wrote into ``folder``."""
    config, kind, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    model.save_pretrained(folder)
    return model


def run(arch: ArchSpec, weights: Any, path: Path, sound: torch.Tensor, stored: str = "fp32") -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(export(Design(arch=arch, weights=stored), weights, path)))
    return session.run(None, {"sound": sound.numpy()})[0]


@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """To 1e-4, for one sound and for three of two lengths; int8 is near."""
    model = written(name, tmp_path)
    arch, weights = load_pretrained(tmp_path)
    whisper = "Whisper" in name
    for batch, samples in ((1, 400), (3, 333)):
        sound = torch.randn((batch, 6, 40) if whisper else (batch, samples), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            given = (model.get_encoder() if whisper else model)(sound)
        expected = (given.logits if isinstance(arch.head, Ctc) else given.last_hidden_state).numpy()
        found = run(arch, weights, tmp_path / "model.onnx", sound)
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
        off = np.abs(run(arch, weights, tmp_path / "int8.onnx", sound, "int8") - expected).max()
        assert 0 < off < 0.1 * np.abs(expected).max()


def test_whispers_encoder_is_a_model_of_its_own() -> None:
    """Of Whisper tiny's 37.76 M parameters 8.21 M: 4 layers of 384, two convolutions, 1,500 positions."""
    arch = encoder_of(resolve("openai/whisper-tiny"))
    layer = 4 * 384**2 + 3 * 384 + 8 * 384**2 + 5 * 384 + 4 * 384
    convs = 3 * 80 * 384 + 384 + 3 * 384**2 + 384
    assert arch.parameters() == 4 * layer + convs + 1500 * 384 + 2 * 384 == 8_208_384
    assert sum(int(np.prod(shape)) for shape in weight_shapes(arch).values()) == arch.parameters()
    assert encoder_of(arch) is arch


@pytest.mark.parametrize("name", ["facebook/wav2vec2-base-960h", "facebook/hubert-large-ll60k"])
def test_published_models_have_a_name_for_every_weight(name: str) -> None:
    arch = resolve(name)
    LISTENER.require(arch, work="exported")
    assert sum(int(np.prod(shape)) for shape in weight_shapes(arch).values()) == arch.parameters()


def test_a_longer_sound_than_the_table_has_is_refused(tmp_path: Path) -> None:
    written("Whisper", tmp_path)
    arch, weights = load_pretrained(tmp_path)
    with pytest.raises(Exception, match="Got: 44 Expected: 40"):
        run(arch, weights, tmp_path / "model.onnx", torch.randn(1, 6, 44))


@pytest.mark.parametrize("changes", [{"conv_pos_batch_norm": True}, {"feat_extract_activation": "relu"}])
def test_what_would_give_other_logits_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    written("HuBERT", tmp_path, **changes)
    with pytest.raises(Unsupported, match=next(iter(changes))):
        load_pretrained(tmp_path)


def test_what_is_not_exported_is_named(tmp_path: Path) -> None:
    conformer = resolve("nvidia/parakeet-ctc-0.6b")
    with pytest.raises(Unsupported, match="cannot be exported"):
        LISTENER.require(conformer, work="exported")
    with pytest.raises(Unsupported, match="it does not take audio"):
        LISTENER.require(resolve("gpt2"), work="exported")
    arch = resolve("facebook/wav2vec2-base-960h")
    layer = replace(arch.layers[0], attention=replace(arch.layers[0].attention, causal=True))
    with pytest.raises(Unsupported, match=r"layers\[0\]\.attention\.causal = True"):
        LISTENER.require(replace(arch, layers=(layer,)), work="exported")


@pytest.mark.parametrize("name", ["Whisper", "HuBERT"])
def test_models_that_hear_are_not_cut(name: str, tmp_path: Path) -> None:
    written(name, tmp_path)
    with pytest.raises(Unsupported, match="read sound and cannot be cut"):
        require_folder(tmp_path)
    with pytest.raises(Unsupported, match="read sound and cannot be cut"):
        require_folder(tmp_path, text=False)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    written("wav2vec 2.0", tmp_path)
    arch, weights = load_pretrained(tmp_path)
    del weights["stem.places.weight_g"]
    with pytest.raises(SpecError, match="weight_g"):
        export(Design(arch=arch), weights, tmp_path / "model.onnx")

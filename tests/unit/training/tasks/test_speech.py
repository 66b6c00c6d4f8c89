"""Speech as a task: the conformance suite, words of espeak-ng, folders of recordings, noise, and what is drawn."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.fields import build
from chipwise.errors import DataError, SpecError, StudyError
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.images.pixels import png
from chipwise.training.data.sound import synthesis
from chipwise.training.data.sound.clips import spectrogram
from chipwise.training.data.sound.waves import clip_of, decoded, divided, noise, noisy, resampled
from chipwise.training.tasks.protocol import task_named
from chipwise.training.tasks.speech.data import SpeechData
from chipwise.training.tasks.speech.references import proportions
from chipwise.training.tasks.speech.sources import WordsSpec, parts_of, recordings
from chipwise.training.tasks.speech.task import SPEECH

RATE = 16_000
SPACE: dict[str, Any] = {
    "image": {
        "axes": 1,
        "size": 40,
        "channels": 16,
        "classes": 3,
        "patch": [4, 8],
        "stem": ["patches", "conv8"],
        "pooling": ["first", "mean"],
    },
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [8],
    "weights": ["fp32"],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [32]},
}


def write_wav(path: Path, samples: np.ndarray, *, rate: int = RATE, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def tone(hz: float, *, seconds: float = 0.3, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoken(tmp_path_factory.mktemp("recordings"))


def spoken(found: Path) -> Path:
    """Three "words", which are tones, by 20 speakers whose voices differ a little."""
    for word, hz in (("high", 3000.0), ("low", 300.0), ("middle", 1000.0)):
        for speaker in range(20):
            write_wav(found / "words" / word / f"s{speaker}_nohash_0.wav", tone(hz * (1 + speaker / 100)))
    return found


class TestSpeech(TaskSuite):
    """The contract of tasks, on tones as words."""

    task = SPEECH
    space = SPACE
    data: ClassVar[dict[str, Any]] = {"source": "folder", "path": "words", "licence": "public domain"}

    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        type(self).base = folder


def test_the_run_file_names_it() -> None:
    assert task_named("speech") is SPEECH


def test_spaces_of_images_are_refused() -> None:
    spec = build(SpaceSpec, {**SPACE, "image": {**SPACE["image"], "axes": 2}})
    with pytest.raises(SpecError, match="one axis"):
        SPEECH.require_fit(None, spec)  # type: ignore[arg-type]


def test_references_have_kwts_proportions() -> None:
    """KWT-1 is 64 wide, 12 deep with one head of 64: aspect 5.3; none is deeper for its width."""
    spec = build(SpaceSpec, {**SPACE, "d_model": [64], "depth": [12]})
    found = list(proportions(spec))
    kwt = [each for each in found if (each["d_model"], each["depth"], each["head_size"]) == (64, 12, 64)]
    assert {each["layers"][0]["ffn_width"] for each in kwt} == {256}
    assert all(each["d_model"] / each["depth"] >= 5 for each in found)


def test_nobody_is_in_two_parts(folder: Path) -> None:
    """20 speakers, a tenth held out twice: 2, 2 and 16; each says three words, and training clips are copied twice."""
    spec = WordsSpec(source="folder", path="words", copies=2, held_out=0.1)
    people = divided([each.speaker for each in recordings(spec, folder)], share=spec.held_out)
    assert [len(people[name]) for name in ("train", "validation", "test")] == [16, 2, 2]
    assert not people["train"] & people["test"]
    assert not people["train"] & people["validation"]
    assert not people["validation"] & people["test"]
    parts = parts_of(spec, folder, bands=16, length=6400)
    assert [len(parts[name].labels) for name in ("train", "validation", "test")] == [16 * 3 * 2, 6, 6]
    assert parts["test"].inputs.shape == (6, 16, 40)
    assert np.bincount(parts["train"].labels).tolist() == [32, 32, 32]
    assert set(parts["train"].snr_db) == {20.0, 10.0, 5.0, 0.0}
    assert np.bincount(parts["train"].speakers).tolist() == [6] * 16
    assert np.bincount(parts["test"].speakers).tolist() == [3, 3]


def test_noise_is_as_loud_as_stated() -> None:
    """At 10 dB the word has ten times the noise's power; the silence around it is no part of the word."""
    random = np.random.default_rng(0)
    clip = clip_of(tone(440.0).astype(np.float32), RATE, random)
    word = clip != 0
    assert 0.25 < word.mean() < 0.31
    added = noisy(clip, 10.0, random) - clip
    assert np.mean(clip[word] ** 2) / np.mean(added**2) == pytest.approx(10, rel=1e-3)
    assert np.mean(noise(RATE, random) ** 2) == pytest.approx(1, rel=1e-5)


def test_clips_hold_the_word_wherever_it_lies() -> None:
    random = np.random.default_rng(0)
    starts = {int(np.flatnonzero(clip_of(tone(440.0).astype(np.float32), RATE, random))[0]) for _ in range(8)}
    assert len(starts) == 8
    long = clip_of(tone(440.0, seconds=2.0).astype(np.float32), RATE, random)
    assert np.sqrt(np.mean(long**2)) == pytest.approx(0.1, rel=1e-3)
    assert not clip_of(np.zeros(5, np.float32), 10, random).any()


def test_wav_files_are_read_at_any_rate_and_with_two_channels(tmp_path: Path) -> None:
    """A tone of 1 kHz at 22,050 Hz is the same tone at 16 kHz; two opposite channels cancel out."""
    write_wav(tmp_path / "mono.wav", tone(1000.0, rate=22_050), rate=22_050)
    found = decoded((tmp_path / "mono.wav").read_bytes(), where="mono.wav")
    expected = tone(1000.0)
    assert len(found) == len(expected)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=0.01)
    write_wav(tmp_path / "two.wav", np.stack([tone(1000.0), -tone(1000.0)], 1).ravel(), channels=2)
    assert np.abs(decoded((tmp_path / "two.wav").read_bytes(), where="two.wav")).max() < 1e-4
    assert resampled(found, RATE) is found


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "not a WAV"), (b"RIFF....WAVE", "not a WAV"), (b"\0" * 100, "not a WAV")]
)
def test_other_files_are_refused_by_name(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"x.wav: {message}"):
        decoded(content, where="x.wav")


def test_too_little_is_said(tmp_path: Path) -> None:
    spec = WordsSpec(source="folder", path="words")
    with pytest.raises(DataError, match="at least two words"):
        parts_of(spec, tmp_path, bands=16, length=6400)
    for word in ("a", "b"):
        write_wav(tmp_path / "words" / word / "one.wav", tone(300.0))
    with pytest.raises(DataError, match="'a' has 1 recordings"):
        parts_of(spec, tmp_path, bands=16, length=6400)
    with pytest.raises(DataError, match="2 speakers"):
        divided(["x", "y", "x"], share=0.1)


def test_a_missing_program_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="apt-get install espeak-ng") as error:
        parts_of(WordsSpec(), Path(), bands=16, length=6400)
    assert "\n" not in str(error.value)


def test_fields_that_do_not_go_together_are_refused() -> None:
    for fields in ({"source": "folder"}, {"path": "x"}, {"words": ("a",)}, {"snr_db": (99.0,)}, {"held_out": 0.9}):
        with pytest.raises(SpecError):
            WordsSpec(**fields)  # type: ignore[arg-type]


@pytest.mark.skipif(synthesis.shutil.which("espeak-ng") is None, reason="needs espeak-ng")
def test_espeak_says_the_same_word_the_same_way() -> None:
    variants = synthesis.variants()
    assert len(variants) > 20
    first, again = (synthesis.spoken("seven", variants[0], take=0, seed=0) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert 0.2 < len(first) / RATE < 2
    other = synthesis.spoken("stop", variants[0], take=0, seed=0)
    assert len(other) != len(first) or not np.array_equal(other, first)


def test_pictures_are_png_files() -> None:
    """Pillow reads the pixels back; the loudest value is black, low bands lie below."""
    image = pytest.importorskip("PIL.Image")

    def shown(uri: str) -> np.ndarray:
        return np.asarray(image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))

    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(shown(png(pixels[None])), pixels)
    assert shown(spectrogram(np.array([[1.0, 0.0], [0.0, 0.0]]))).tolist() == [[255, 255], [0, 255]]


def test_synthetic_speech_is_called_so_wherever_it_is_shown() -> None:
    samples = {
        "synthetic": True,
        "clips": [{"image": "data:,", "label": "<yes>", "winner": "no", "snr_db": 5.0}],
        "noise": [{"snr_db": 5.0, "clips": 4, "winner": 0.75}],
        "times": {"clip_s": 1.0, "front_end_s": 3e-4, "winner": 1e-4},
        "confusion": [[1, 0], [2, 1]],
        "classes": ["no", "yes"],
    }
    found = {picture.name: picture.html for picture in SPEECH.report_sections(samples)}
    assert list(found) == ["spectrograms", "noise", "real_time", "confusion"]
    assert all("synthetic" in html for name, html in found.items() if name != "real_time")
    assert not any("synthetic" in each.html for each in SPEECH.report_sections({**samples, "synthetic": False}))
    assert "<yes>" not in found["spectrograms"]
    assert "75.0 %" in found["noise"]
    assert "0.0004" in found["real_time"]  # (100 + 300) µs for a second of audio


def test_the_same_recordings_give_the_same_clips_anywhere(folder: Path, tmp_path: Path) -> None:
    """Spectrograms are made again, in another folder, to the last bit; other settings are refused in the same one."""
    spec, image = build(WordsSpec, dict(TestSpeech.data)), build(SpaceSpec, SPACE).image
    assert image is not None
    first, again = (SpeechData(spec, folder, tmp_path / name, image) for name in ("a", "b"))
    first.prepare()
    again.prepare()
    for one, other in zip(first.arrays.test, again.arrays.test, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(StudyError, match="--restart"):
        SpeechData(replace(spec, snr_db=()), folder, tmp_path / "a", image).prepare()
    with pytest.raises(SpecError, match="must be 3, the data's number of words, not 4"):
        SpeechData(spec, folder, tmp_path / "c", replace(image, classes=4)).prepare()

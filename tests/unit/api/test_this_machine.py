"""This machine as a device of estimate and compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import chipwise
from chipwise.cli.app import app
from chipwise.deploy.measure.store import kept_as, profile_path
from chipwise.design.models.this_machine import kind_of, weights_here
from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.sentence.choices import SentenceSpace
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.kinds.sound.choices import SoundSpace
from chipwise.model.kinds.sound.published import encoder_of
from chipwise.model.published.read import resolve
from chipwise.predict.cost.request import throughput
from support.machines import round_machine


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    profile = round_machine()
    path = profile_path("onnxruntime", 1)
    path.parent.mkdir(parents=True)
    profile.save(path)


@pytest.mark.usefixtures("calibrated")
def test_an_estimate_here_is_what_is_explained_here() -> None:
    found = chipwise.estimate("gpt2", device="here", prompt=64, new=16)
    assert found.tpot_s == chipwise.explain("gpt2", device="here", prompt=64, new=16).estimate.tpot_s
    assert found.tpot_s == chipwise.estimate("gpt2", device="local", prompt=64, new=16).tpot_s
    rate = found.metrics["throughput"]
    assert rate.value == pytest.approx(throughput(found.ttft_s, found.tpot_s, 16, 1))
    first, step = found.metrics["ttft_p50"], found.metrics["tpot_p50"]
    assert rate.low == pytest.approx(throughput(first.high, step.high, 16, 1))
    with pytest.raises(InputError, match="one device"):
        chipwise.estimate("gpt2", device="here", prompt=64, new=16, tp=2)


@pytest.mark.usefixtures("calibrated")
def test_this_machine_stands_beside_data_sheets_and_one_bad_model_spoils_nothing() -> None:
    found = chipwise.compare(["gpt2", "bert-base-uncased"], devices=["here", "l4"], prompt=512, new=100)
    assert set(found.devices) == {"here", "l4"}
    assert found.at("gpt2", "here").estimate.tpot_s > found.at("gpt2", "l4").estimate.tpot_s
    assert "512 positions" in found.at("bert-base-uncased", "here").problem
    alone = chipwise.compare(["gpt2"], devices=["here"], prompt=64)
    assert alone.devices == ("here",)
    assert chipwise.estimate("gpt2", devices=["here", "l4"], prompt=64)[0].device == "l4"


def test_without_calibration_one_line_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    for ask in (
        lambda: chipwise.estimate("gpt2", device="here"),
        lambda: chipwise.compare(["gpt2"], devices=["local"]),
    ):
        with pytest.raises(InputError, match=r"not calibrated in onnxruntime .*run: chipwise calibrate"):
            ask()


@pytest.fixture
def hearing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    path = profile_path(kept_as("onnxruntime", "sounds"), 1)
    path.parent.mkdir(parents=True)
    round_machine().save(path)


@pytest.mark.usefixtures("hearing")
def test_of_a_model_that_hears_and_writes_the_encoder_is_priced_here() -> None:
    """A speech model is priced as its encoder; half the sound takes less time; explain and compare agree."""
    found = chipwise.estimate("openai/whisper-tiny", device="here")
    assert "only the encoder is estimated" in " ".join(found.notes)
    assert not [name for name in found.metrics if name.startswith("tpot")]
    alone = chipwise.estimate(encoder_of(resolve("openai/whisper-tiny")), device="here")
    assert found.ttft_s == alone.ttft_s
    assert chipwise.explain("openai/whisper-tiny", device="here").estimate.ttft_s == found.ttft_s
    assert chipwise.compare(["whisper-tiny", "whisper-base"], devices=["here"]).at("whisper-tiny", "here").estimate
    assert chipwise.estimate("openai/whisper-tiny", device="here", audio_s=15).ttft_s < 0.6 * found.ttft_s


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: chipwise.estimate("moonshine-tiny", device="here"),
            "encoder of moonshine-tiny cannot be estimated on",
        ),
        (lambda: chipwise.explain("t5-small", device="here"), "a decoder that attends to an encoder is not supported"),
        (lambda: chipwise.estimate("smolvlm-256m", device="here", images=1), "time the model's parts here with"),
        (lambda: chipwise.estimate_pictures("FLUX.1-dev", device="here"), "diffusion models are predicted from"),
        (lambda: chipwise.explain_pictures("FLUX.1-dev", device="local"), "name another --device, such as h100-sxm"),
        (lambda: chipwise.estimate_parts("whisper_small", device="here"), "such as snapdragon-8-elite"),
    ],
)
def test_what_this_machine_cannot_price_says_what_can(
    ask: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is refused before a useless calibration is requested."""
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    with pytest.raises(Unsupported, match=said):
        ask()


def test_a_model_of_phones_parts_is_priced_here_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPWISE_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["estimate", "whisper-tiny", "--device", "here"])
    assert "run: chipwise calibrate --runtime onnxruntime --threads 1 --sounds" in str(done.exception)


def test_own_weights_of_this_machine_are_those_of_the_model() -> None:
    assert weights_here("gpt2", "own") is None
    assert weights_here("gpt2", None) is None
    assert weights_here("gpt2", "int8") == "int8"


def test_each_kind_has_the_profile_that_its_searches_calibrate() -> None:
    """Classifiers of short texts have the nodes of image classifiers, so they share that profile."""
    ends = {"d_model": 8, "layers": (Layer(attention=None, ffn=FeedForward(width=8)),), "max_tokens": 4}
    texts = ArchSpec(
        stem=SentenceStem(words=9, tokens=4), head=Classes(count=2, pooling="mean"), positions="learned", **ends
    )
    assert kind_of(texts) == SentenceSpace.calibration == "images"
    assert kind_of("whisper-tiny") == SoundSpace.calibration == "sounds"
    assert kind_of("gpt2") == kind_of(texts, "gpt2") == ""

"""What is built of every known model, said in one sentence; what trains it, and what works instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chipwise.deploy.export.hf import require_folder
from chipwise.design.phases.one_model import judge_on_task
from chipwise.design.run.spec import load_run
from chipwise.errors import InputError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.kinds.sound.published import encoder_of
from chipwise.model.published import families
from chipwise.model.published.read import resolve
from chipwise.model.walk.built import require_built, require_trained, task_of

EXAMPLES = Path(__file__).parents[4] / "examples"
BEYOND_TEXT = [
    name for name in families.names() if (arch := resolve(name)).stem or arch.encoder_stem or arch.towers
]  # fmt: skip


def said_of(name: str) -> Iterator[str]:
    """What measuring and training it would be refused with."""
    arch = resolve(name)
    for task in ("text", "vision", "transcripts"):
        try:
            require_trained(arch, task=task)
        except (InputError, Unsupported) as error:
            yield str(error)
    try:
        require_built(encoder_of(arch), work="measured")
    except Unsupported as error:
        yield str(error)


def test_every_refusal_is_one_sentence_with_what_works_instead() -> None:
    """Over all known models of images and sound: no values of classes, at most 250 characters."""
    assert len(BEYOND_TEXT) > 130
    for name in BEYOND_TEXT:
        for text in said_of(name):
            assert len(text) <= 250, text
            assert not any(sign in text for sign in ("\n", "<", "Spec(", "Layer(", "Attention(", "…")), text
            assert "chipwise estimate" in text or "chipwise init" in text or "text files" in text, text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("moonshine-tiny", "positions = 'rope' is not supported for sound"),
        ("parakeet-ctc-0.6b", "a stem over frames and bands"),
        ("eva02_base_patch16_clip_224", "queries have biases, but keys have none"),
        ("swin-tiny-patch4-window7-224", r"before the model's own \(Swin\) are not supported"),
        ("swinv2-tiny-patch4-window8-256", r"before the model's own \(Swin\) are not supported"),
        ("facebook/wav2vec2-conformer-rel-pos-large", r"layers\[0\]\.first_ffn is not supported"),
    ],
)
def test_what_is_missing_is_named(name: str, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        require_built(encoder_of(resolve(name)), work="measured")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("gpt2", "text"),
        ("deit-tiny-patch16-224", "vision"),
        ("swin-tiny-patch4-window7-224", None),
        ("dinov2-small", None),
        ("wav2vec2-base-960h", None),
        ("whisper-tiny", None),
        ("smolvlm-256m", None),
        ("bert-base-uncased", None),
    ],
)
def test_tasks_that_train_published_models(name: str, task: str | None) -> None:
    assert task_of(resolve(name)) == task


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        (
            "deit-tiny-patch16-224",
            "text",
            "classifies images of 224 x 224 in 3 channels into 1,000 classes: .* --data vision.yaml",
        ),
        ("deit-tiny-patch16-224", "transcripts", "--data vision.yaml"),
        ("gpt2", "vision", "gpt2 reads text: name text files"),
        (
            "wav2vec2-base-960h",
            "transcripts",
            "chipwise only predicts the cost of published audio models; chipwise estimate",
        ),
        (
            "siglip-base-patch16-224",
            "vision",
            "chipwise only predicts the cost of published image encoders; chipwise estimate",
        ),
        ("smolvlm-256m", "multimodal", "chipwise does not train a tower and a decoder together"),
        ("whisper-tiny", "transcripts", "a decoder that attends to an encoder is not supported; chipwise estimate"),
        ("bert-base-uncased", "text", "chipwise does not train text encoders from scratch"),
    ],
)
def test_what_cannot_be_trained_says_what_works(name: str, task: str, said: str) -> None:
    with pytest.raises((InputError, Unsupported), match=said):
        require_trained(resolve(name), task=task)


def test_what_fits_is_trained() -> None:
    text: ArchSpec = uniform(vocab_size=256, d_model=32, depth=1, heads=2, ffn_width=64)
    for arch, task in ((text, "text"), (text, "series"), (resolve("deit-tiny-patch16-224"), "vision")):
        require_built(arch, work="trained")
        require_trained(arch, task=task)
        other = "vision" if task != "vision" else "text"
        with pytest.raises((InputError, Unsupported), match=f"{arch.name} "):  # the same model, asked for another task
            require_trained(arch, task=other)


def test_a_known_name_is_no_folder_with_weights() -> None:
    said = "the name of a known model, but chipwise does not contain its weights; download the folder of openai/whisper"
    with pytest.raises(InputError, match=said):
        require_folder(Path("whisper-tiny"))
    with pytest.raises(InputError, match=said):
        judge_on_task("whisper-tiny", load_run(EXAMPLES / "vision.yaml"))
    with pytest.raises(InputError, match="there is no such folder"):
        require_folder(Path("nowhere"))

"""Transcripts as a task: the conformance suite, texts beside recordings, errors by hand, what is drawn and shipped."""

from __future__ import annotations

import json
import math
import shutil
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from chipwise.api.testing.task_suite import TaskSuite
from chipwise.core.fields import build
from chipwise.errors import DataError, InputError, SpecError
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.sound import synthesis
from chipwise.training.tasks.protocol import task_named
from chipwise.training.tasks.transcripts.dataset import (
    TranscribedSpectrograms,
    decoded,
    distance,
    edits_of,
    least_positions,
)
from chipwise.training.tasks.transcripts.references import proportions
from chipwise.training.tasks.transcripts.sections import sections
from chipwise.training.tasks.transcripts.sources import BLANK_NAME, UtterancesSpec, parts_of, read_utterances, text_of
from chipwise.training.tasks.transcripts.task import TRANSCRIPTS

RATE = 16_000
SPACE: dict[str, Any] = {
    "sound": {
        "size": 48,
        "channels": 12,
        "classes": 5,
        "stride": [2, 4],
        "window": ["global", "local6"],
        "module": ["none", "conv3"],
    },
    "d_model": [16, 32],
    "depth": [1, 2],
    "head_size": [8],
    "weights": ["fp32"],
    "norm": "layernorm",
    "layers": "alike",
    "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [32]},
}
TONES = {"a": 400.0, "b": 1500.0, "c": 4000.0}


def write_wav(path: Path, samples: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def sung(text: str, pitch: float = 1.0) -> np.ndarray:
    """100 ms of a tone for each letter, 50 ms of near silence for a space."""
    times = np.arange(1600) / RATE
    parts = [
        0.5 * np.sin(2 * np.pi * TONES[sign] * pitch * times) if sign in TONES else 0.001 * np.ones(800)
        for sign in text
    ]
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoken(tmp_path_factory.mktemp("recordings"))


def spoken(found: Path) -> Path:
    """Ten singers of five short texts, with a table of transcripts."""
    lines = ["speaker\tfile\tSentence"]
    for singer in range(10):
        for number, text in enumerate(("ab", "b a", "cab", "a c", "bca")):
            name = f"s{singer}-{number}.wav"
            write_wav(found / "songs" / name, sung(text, 1 + singer / 200))
            lines.append(f"singer {singer}\t{name}\t{text.upper()}!")
    (found / "songs" / "texts.tsv").write_text("\n".join(lines) + "\n")
    return found


class TestTranscripts(TaskSuite):
    """The contract of tasks, on tones as letters."""

    task = TRANSCRIPTS
    space = SPACE
    data: ClassVar[dict[str, Any]] = {"source": "folder", "path": "songs", "licence": "public domain"}

    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        type(self).base = folder


def test_the_run_file_names_it() -> None:
    assert task_named("transcripts") is TRANSCRIPTS


def test_other_spaces_are_refused() -> None:
    space = {name: value for name, value in SPACE.items() if name != "sound"}
    spec = build(SpaceSpec, space | {"image": {"size": 8, "classes": 2, "patch": [4]}})
    with pytest.raises(SpecError, match=r"space.sound.*frames of 10 ms"):
        TRANSCRIPTS.require_fit(None, spec)  # type: ignore[arg-type]


def test_references_have_whispers_and_conformers_proportions() -> None:
    """Whisper tiny is 384 wide with 4 layers and heads of 64; Conformer S is 144 wide with 16, kernels of 31."""
    spec = build(SpaceSpec, {**SPACE, "d_model": [384], "depth": [16]})
    found = list(proportions(spec))
    tiny = [each for each in found if (each["d_model"], each["depth"], each["head_size"]) == (384, 4, 64)]
    assert {(each["stride"], each["module"], each["layers"][0]["ffn_width"]) for each in tiny} == {(2, "none", 1536)}
    small = [each for each in found if (each["d_model"], each["depth"], each["module"]) == (144, 16, "conv31")]
    assert {each["stride"] for each in small} == {4}
    assert {TRANSCRIPTS.family(each) for each in found} == {True, False}


@pytest.mark.parametrize(
    ("said", "wanted", "edits"),
    [("", "abc", 3), ("abc", "abc", 0), ("abd", "abc", 1), ("bc", "abc", 1), ("xabc", "abc", 1)],
)
def test_edits_by_hand(said: str, wanted: str, edits: int) -> None:
    assert distance(said, wanted) == edits == distance(wanted, said)


def test_greedy_decoding_joins_repetitions_and_drops_blanks() -> None:
    """``- a a - a b b`` is ``a a b``; the blank between the two keeps them apart."""
    path = np.eye(3)[[0, 1, 1, 0, 1, 2, 2]]
    assert decoded(path) == [1, 1, 2]
    labels = np.array([[1, 1, 2, 0], [2, 0, 0, 0]])
    assert edits_of(np.stack([path, path]), labels).tolist() == [0.0, 2.0]
    broken = path.copy()
    broken[3, 1] = np.nan
    assert math.isnan(edits_of(broken[None], labels[:1])[0])
    assert least_positions(labels).tolist() == [4, 1]  # a, blank, a, b


def test_the_loss_is_ctcs_by_pencil() -> None:
    """Two positions, one letter: paths ``a a``, ``a -`` and ``- a`` say it; each has a chance of 1/4."""
    empty = (np.zeros((1, 1, 2), np.float16), np.array([[1]]))
    unit = np.ones((1, 1), np.float32)
    data = TranscribedSpectrograms(
        train=empty, validation=empty, test=empty, classes=(BLANK_NAME, "a"), mean=0 * unit, std=unit
    )
    logits = torch.zeros((1, 2, 2))
    loss = data.loss(lambda inputs: logits, (torch.zeros(1, 1, 2), torch.tensor([[1]])), torch.float32)  # type: ignore[arg-type]
    assert float(loss) == pytest.approx(-math.log(3 / 4))


def test_texts_are_small_letters_digits_and_apostrophes() -> None:
    assert text_of("  Don\N{RIGHT SINGLE QUOTATION MARK}t — STOP,\n42! ") == "don't stop 42"
    assert text_of("?!") == ""


def test_nobody_is_in_two_parts_and_labels_spell_the_texts(folder: Path) -> None:
    spec = UtterancesSpec(source="folder", path="songs", copies=3, held_out=0.2)
    found = read_utterances(spec, folder, length=48 * 160)
    assert found.characters == (BLANK_NAME, " ", "a", "b", "c")
    assert (len(found.found), found.too_long) == (50, 0)
    parts = parts_of(found, spec, bands=12, length=48 * 160)
    assert [len(parts[name].labels) for name in ("train", "validation", "test")] == [6 * 5 * 3, 10, 10]
    spelt = {"".join(found.characters[label] for label in row if label) for row in parts["test"].labels}
    assert spelt == {"ab", "b a", "cab", "a c", "bca"}
    assert np.bincount(parts["test"].speakers).tolist() == [5, 5]
    assert set(parts["train"].snr_db) == {20.0, 10.0, 5.0}


def test_long_utterances_are_left_out_until_most_are(folder: Path) -> None:
    """Texts of three letters take 300 ms, those with a space 250 ms, two letters 200 ms."""
    spec = UtterancesSpec(source="folder", path="songs")
    assert read_utterances(spec, folder, length=4200).too_long == 20
    with pytest.raises(DataError, match=r"40 of 50 utterances are longer than the 0.2\d* s that space.sound.size"):
        read_utterances(spec, folder, length=3600)


def test_texts_may_lie_beside_the_recordings(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "songs", tmp_path / "songs")
    (tmp_path / "songs" / "texts.tsv").unlink()
    spec = UtterancesSpec(source="folder", path="songs")
    with pytest.raises(DataError, match=r"no s0-0\.txt beside it, and no table"):
        read_utterances(spec, tmp_path, length=48 * 160)
    for path in (tmp_path / "songs").glob("*.wav"):
        path.with_suffix(".txt").write_text("A cab.\n")
    found = read_utterances(spec, tmp_path, length=48 * 160)
    assert {each.text for each in found.found} == {"a cab"}
    assert len({each.speaker for each in found.found}) == 50


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("name,text\n", "no column file or path; it has name, text"),
        ("file,words\n", "no column text or sentence"),
        ("file,text\nnone.wav,a\n", r"line 2: the file 'none.wav' is not in the table's folder"),
        ("file,text\n../a.wav,?!\n", "no letters or digits"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(table: str, said: str, tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", sung("a"))
    (tmp_path / "songs").mkdir()
    (tmp_path / "songs" / "texts.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        read_utterances(UtterancesSpec(source="folder", path="songs"), tmp_path, length=7680)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source": "folder"}, "path"),
        ({"shortest": 5, "longest": 3}, "longest"),
        ({"words": ("Yes",)}, "words"),
        ({"snr_db": (99.0,)}, "snr_db"),
        ({"held_out": 0.9}, "held_out"),
    ],
)
def test_wrong_fields_are_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        UtterancesSpec(**changed)


def test_characters_and_positions_must_fit(folder: Path, tmp_path: Path) -> None:
    """The data has four characters and a blank; texts of three letters need three positions."""
    data = {"source": "folder", "path": "songs"}
    spec = build(SpaceSpec, {**SPACE, "sound": {**SPACE["sound"], "classes": 9}})
    with pytest.raises(SpecError, match=r"must be 5 \(the blank and the characters ' abc'\), not 9"):
        TRANSCRIPTS.open(data, base=folder, folder=tmp_path / "one", space=spec).prepare()
    opened = TRANSCRIPTS.open(data, base=folder, folder=tmp_path / "two", space=build(SpaceSpec, SPACE))
    opened.prepare()
    suite = TestTranscripts()
    arch = suite.design().arch
    loaded = opened.data(arch).load()
    loaded.require_fit(arch)
    assert isinstance(loaded, TranscribedSpectrograms)
    long = replace(loaded, test=(loaded.test[0], np.tile([[2, 2]], (len(loaded.test[1]), 30))))
    with pytest.raises(InputError, match="longest text needs 119"):
        long.require_fit(arch)
    with pytest.raises(InputError, match="5 characters, the data has 2"):
        replace(loaded, classes=(BLANK_NAME, "a")).require_fit(arch)


def test_what_is_shipped_is_loaded_by_transformers(folder: Path, tmp_path: Path) -> None:
    """AutoModelForCTC computes the module's logits, and transformers' tokenizer of characters decodes them."""
    transformers = pytest.importorskip("transformers")
    from chipwise.deploy.export.hf import load_pretrained
    from chipwise.model.walk.module import load

    TestTranscripts.base = folder
    suite = TestTranscripts()
    opened, item = suite.opened(tmp_path / "data"), suite.exported(tmp_path)
    opened.ship(item, tmp_path / "winner", {})
    model = transformers.AutoModelForCTC.from_pretrained(tmp_path / "winner", trust_remote_code=True).eval()
    data = opened.data(item.design.arch).load()
    assert isinstance(data, TranscribedSpectrograms)
    (inputs,), (_, labels) = data.examples("test"), data.part("test")
    with torch.no_grad():
        expected = load(item.design.arch, item.weights)(torch.from_numpy(inputs))
        found = model(input_features=torch.from_numpy(inputs), labels=torch.from_numpy(labels))
    torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-4)
    assert math.isfinite(float(found.loss))
    arch, weights = load_pretrained(tmp_path / "winner")
    assert arch == item.design.arch
    assert all(np.array_equal(weights[name], item.weights[name]) for name in weights)
    tokenizer = transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path / "winner")
    assert tokenizer.decode([0, 2, 2, 0, 2, 1, 3, 0, 0]) == "aa b"
    front_end = json.loads((tmp_path / "winner" / "front_end.json").read_text())
    assert (front_end["samples"], len(front_end["mean"])) == (7680, 12)


def test_pictures_show_what_was_said_and_what_is_wrong() -> None:
    samples = {
        "clips": [{"image": "data:,", "text": "yes <no>", "winner": "yes <no>", "baseline": "", "snr_db": 5.0}],
        "synthetic": True,
        "rates": {
            "winner": {"characters": {"rate": 0.1, "std_error": 0.01}, "words": {"rate": 0.25, "std_error": None}}
        },
        "noise": [{"snr_db": 5.0, "utterances": 3, "winner": 0.1}],
        "times": {"clip_s": 3.2, "front_end_s": 0.0016, "winner": 0.0016},
    }
    shown = {picture.name: picture.html for picture in sections(samples)}
    assert "said: yes &lt;no&gt;" in shown["spectrograms"]
    assert "winner: yes &lt;no&gt;" in shown["spectrograms"]
    assert "<b>(nothing)</b>" in shown["spectrograms"]
    assert "synthetic (espeak-ng)" in shown["spectrograms"]
    assert "10.0 % ± 1.6" in shown["errors"]
    assert "25.0 %</td>" in shown["errors"]
    assert "0.001</td>" in shown["real_time"]  # 3.2 ms over 3.2 s


@pytest.mark.skipif(shutil.which(synthesis.PROGRAM) is None, reason="needs espeak-ng (apt-get install espeak-ng)")
def test_espeak_says_two_to_six_words() -> None:
    """Two voices, ten utterances each: the same again, of the words that are listed."""
    spec = UtterancesSpec(voices=3, utterances=8)
    found = read_utterances(spec, Path(), length=320 * 160)
    assert found.too_long == 0
    assert {2 <= len(each.text.split()) <= 6 for each in found.found} == {True}
    assert {word for each in found.found for word in each.text.split()} <= set(synthesis.WORDS)
    again = read_utterances(spec, Path(), length=320 * 160)
    assert [each.text for each in again.found] == [each.text for each in found.found]
    np.testing.assert_array_equal(again.found[3].samples, found.found[3].samples)


def test_without_espeak_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="apt-get install espeak-ng"):
        read_utterances(UtterancesSpec(), Path(), length=1600)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "utterances.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a file of data"):
        TranscribedSpectrograms.load(tmp_path / "utterances.npz")

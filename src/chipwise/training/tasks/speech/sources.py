"""Spoken words to learn: the user's WAV folder, or words spoken by ``espeak-ng``, as clips with noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.fields import check_fields, positive
from chipwise.core.files import read_bytes
from chipwise.errors import DataError, SpecError
from chipwise.training.data.sound import clips, synthesis
from chipwise.training.data.sound.clips import MOST_BYTES, Part
from chipwise.training.data.sound.waves import decoded, endless

SPEAKER = "_nohash_"  # what follows the speaker in the file names of Speech Commands
FEWEST = 6  # recordings of the rarest word


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsSpec:
    """The words to learn.

    ``path`` is a folder with one folder of WAV files for each word, from the run file's folder on. What precedes
    ``_nohash_`` in a file's name is its speaker, as in Speech Commands; else each file counts as a speaker. Speakers of
    validation and test are heard in no other part; each of these two parts holds ``held_out`` of them.
    """

    source: Literal["espeak", "folder"] = "espeak"
    path: str = ""
    words: tuple[str, ...] = ()  # of espeak: the 20 commands unless listed
    voices: int = 101  # of espeak: voice variants that speak, as far as installed
    takes: int = 1  # of espeak: times that each variant speaks each word
    copies: int = 3  # of each training clip, with different noise and place in time
    snr_db: tuple[float, ...] = (20.0, 10.0, 5.0, 0.0)  # word over noise, in turn; none adds no noise
    held_out: float = 0.12
    licence: str = "not stated"

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "voices", "takes", "copies", most=1_000)
        if (self.source == "folder") != bool(self.path):
            raise SpecError("source: folder needs a path, and espeak reads none", field="path")
        if self.source == "folder" and self.words:
            raise SpecError("the words of a folder are the names of its folders; leave it out", field="words")
        if self.source == "espeak" and self.words and len(set(self.words)) < 2:
            raise SpecError("list at least two different words", field="words")
        if not 0.01 <= self.held_out <= 0.4:
            raise SpecError(f"must lie between 0.01 and 0.4, not {self.held_out}", field="held_out")
        if any(not -20 <= ratio <= 60 for ratio in self.snr_db):
            raise SpecError(f"ratios lie between -20 and 60 dB, not {list(self.snr_db)}", field="snr_db")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One recorded word: its samples at 16 kHz, its label and its speaker."""

    samples: NDArray[np.float32]
    label: int
    speaker: str
    endless: bool = False  # whether its file states no length


def words_of(spec: WordsSpec, base: Path) -> tuple[str, ...]:
    """The words, in the order of their labels.

    Raises:
        DataError: The folder is missing or holds fewer than two.
    """
    if spec.source == "espeak":
        return spec.words or synthesis.WORDS
    folder = base / spec.path
    found = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if len(found) < 2:
        raise DataError(f"{folder}: there must be a folder of WAV files for each of at least two words")
    return tuple(found)


def recordings(spec: WordsSpec, base: Path) -> Iterator[Spoken]:
    """All recordings, in a fixed order.

    Raises:
        DataError: The program is missing, or a file is broken.
    """
    words = words_of(spec, base)
    if spec.source == "folder":
        for label, word in enumerate(words):
            for path in sorted((base / spec.path / word).glob("*.wav")):
                content = read_bytes(path, most=MOST_BYTES)
                samples, speaker = decoded(content, where=str(path)), path.stem.partition(SPEAKER)[0]
                yield Spoken(samples=samples, label=label, speaker=speaker, endless=endless(content))
        return
    for variant in synthesis.variants()[: spec.voices]:
        for take in range(spec.takes):
            for label, word in enumerate(words):
                yield Spoken(samples=synthesis.spoken(word, variant, take=take, seed=0), label=label, speaker=variant)


def parts_of(spec: WordsSpec, base: Path, *, bands: int, length: int) -> dict[str, Part]:
    """Training, validation and test parts; ``length`` is of a clip, in samples. Training clips are copied.

    Raises:
        DataError: There are too few recordings or speakers, or a file is broken.
    """
    found = list(recordings(spec, base))
    words = words_of(spec, base)
    counts = np.bincount([each.label for each in found], minlength=len(words))
    if counts.min() < FEWEST:
        raise DataError(f"{words[int(counts.argmin())]!r} has {counts.min()} recordings; each word needs {FEWEST}")
    silent = sorted(set(range(len(words))) - {each.label for each in found if each.samples.any()})
    if len(silent) > 1:  # one of them may be the word for silence
        raise DataError(f"all recordings of {words[silent[0]]!r} and {words[silent[1]]!r} are silent")
    labels = np.array([each.label for each in found], np.int64)
    made = clips.parts_of(found, labels, spec, bands=bands, length=length, seed=0)
    for name, part in made.items():
        if missing := set(range(len(words))) - set(part.labels.tolist()):
            raise DataError(f"nobody speaks {words[min(missing)]!r} in the {name} part; record more speakers")
    return made

"""Sources of spoken words: the user's WAV folder, or words synthesised by ``espeak-ng``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.fields import positive
from chipwise.core.files import read_bytes
from chipwise.errors import DataError, SpecError
from chipwise.training.data.sound import clips, synthesis
from chipwise.training.data.sound.clips import MOST_BYTES, Part, Recording, RecordingsSpec
from chipwise.training.data.sound.waves import decoded, endless

SPEAKER = "_nohash_"  # separates the speaker from the rest in file names of Speech Commands
FEWEST = 6  # fewest recordings of a word


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsSpec(RecordingsSpec):
    """The words and their recordings; see :class:`chipwise.training.data.sound.clips.RecordingsSpec`.

    ``path`` is a folder with one folder of WAV files for each word. The part of a file name before ``_nohash_`` is the
    speaker, as in Speech Commands; each file without ``_nohash_`` counts as a separate speaker.
    """

    takes: int = 1  # for espeak: times that each variant speaks each word
    copies: int = 3
    snr_db: tuple[float, ...] = (20.0, 10.0, 5.0, 0.0)

    def __post_init__(self) -> None:
        RecordingsSpec.__post_init__(self)
        positive(self, "takes", most=1_000)
        if self.source == "folder" and self.words:
            raise SpecError(
                "with `source: folder`, the folders' names are the words; leave this field out", field="words"
            )
        if self.source == "espeak" and self.words and len(set(self.words)) < 2:
            raise SpecError("list at least two different words", field="words")


def words_of(spec: WordsSpec, base: Path) -> tuple[str, ...]:
    """The words, in the order of their labels.

    Raises:
        DataError: The folder is missing or contains fewer than two words.
    """
    if spec.source == "espeak":
        return spec.words or synthesis.WORDS
    folder = base / spec.path
    found = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else []
    if len(found) < 2:
        raise DataError(f"{folder}: must contain a folder of WAV files for each word, and at least two words")
    return tuple(found)


def recordings(spec: WordsSpec, base: Path) -> Iterator[Recording]:
    """Reads or synthesises all recordings, in a fixed order.

    Raises:
        DataError: ``espeak-ng`` is missing, or a file is broken.
    """
    words = words_of(spec, base)
    if spec.source == "folder":
        for word in words:
            for path in sorted((base / spec.path / word).glob("*.wav")):
                content = read_bytes(path, most=MOST_BYTES)
                samples, speaker = decoded(content, where=str(path)), path.stem.partition(SPEAKER)[0]
                yield Recording(samples=samples, text=word, speaker=speaker, endless=endless(content))
        return
    for variant in synthesis.variants()[: spec.voices]:
        for take in range(spec.takes):
            for word in words:
                samples = synthesis.spoken(word, variant, take=take, seed=0)
                yield Recording(samples=samples, text=word, speaker=variant)


def parts_of(spec: WordsSpec, base: Path, *, bands: int, length: int) -> dict[str, Part]:
    """Splits recordings into training, validation and test clips of ``length`` samples, with noise.

    Raises:
        DataError: There are too few recordings or speakers, or a file is broken.
    """
    found = list(recordings(spec, base))
    words = words_of(spec, base)
    numbers = {word: number for number, word in enumerate(words)}
    labels = np.array([numbers[each.text] for each in found], np.int64)
    counts = np.bincount(labels, minlength=len(words))
    if counts.min() < FEWEST:
        raise DataError(f"{words[int(counts.argmin())]!r} has {counts.min()} recordings; words need at least {FEWEST}")
    heard = {each.text for each in found if each.samples.any()}
    silent = [word for word in words if word not in heard]
    if len(silent) > 1:  # one of them may be the class for silence
        raise DataError(f"all recordings of {silent[0]!r} and {silent[1]!r} are silent; only one word may be silent")
    made = clips.parts_of(found, labels, spec, bands=bands, length=length, seed=0)
    for name, part in made.items():
        if missing := set(range(len(words))) - set(part.labels.tolist()):
            raise DataError(f"no speaker of the {name} part says {words[min(missing)]!r}; record more speakers")
    return made

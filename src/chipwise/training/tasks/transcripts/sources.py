"""Sources of utterances: the user's WAV files with texts, or words spoken one after another by ``espeak-ng``."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.fields import positive
from chipwise.core.files import read_bytes
from chipwise.errors import DataError, SpecError
from chipwise.training.data.sound import clips, synthesis
from chipwise.training.data.sound.clips import MOST_BYTES, Part, Recording, RecordingsSpec
from chipwise.training.data.sound.front_end import RATE_HZ
from chipwise.training.data.sound.waves import decoded, endless, trimmed
from chipwise.training.tasks.transcripts.dataset import BLANK

FEWEST = 20  # fewest utterances in all
LEFT_OUT = 0.5  # largest share of utterances that may be left out as too long
BLANK_NAME = "<pad>"  # CTC's blank, as transformers' tokenizers of characters call it
COLUMNS: Mapping[str, tuple[str, ...]] = {  # accepted names of a table's columns, in order of preference
    "file": ("file", "path", "filename", "file_name", "wav"),
    "text": ("text", "sentence", "transcript", "transcription"),
    "speaker": ("speaker", "speaker_id", "client_id", "voice"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UtterancesSpec(RecordingsSpec):
    """The recordings and their texts; see :class:`chipwise.training.data.sound.clips.RecordingsSpec`.

    ``path`` is a folder of WAV files. It also contains one table (CSV or TSV) with the columns ``file``, ``text`` and
    optionally ``speaker``, or a ``.txt`` file of the same name for each WAV file. Without ``speaker``, each file counts
    as a separate speaker. Texts are reduced to lower-case letters, digits and apostrophes.
    """

    utterances: int = 10  # for espeak: utterances per variant
    shortest: int = 2  # least words in an utterance
    longest: int = 6
    copies: int = 2
    snr_db: tuple[float, ...] = (20.0, 10.0, 5.0)

    def __post_init__(self) -> None:
        RecordingsSpec.__post_init__(self)
        if self.words and (self.source != "espeak" or any(text_of(word) != word for word in self.words)):
            raise SpecError("must list words in lower case, which espeak speaks", field="words")
        positive(self, "utterances", "shortest", most=10_000)
        if not self.shortest <= self.longest <= 100:
            raise SpecError(f"must be from {self.shortest} to 100 words, not {self.longest}", field="longest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterances:
    """Utterances that can be used, without those that are too long.

    Attributes:
        found: The recordings.
        characters: The name of CTC's blank, then all characters in the texts.
        too_long: Number of utterances that are left out because they are too long.
    """

    found: tuple[Recording, ...]
    characters: tuple[str, ...]
    too_long: int


def text_of(said: str) -> str:
    """Normalises a text to lower-case letters, digits and apostrophes, with single spaces.

    >>> text_of(" Don't stop,  GO! ")
    "don't stop go"
    """
    kept = (
        sign if sign.isalnum() or sign == "'" else " "
        for sign in said.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    return " ".join("".join(kept).split())


def read_utterances(spec: UtterancesSpec, base: Path, *, length: int) -> Utterances:
    """Reads or synthesises all utterances, and leaves out those longer than ``length`` samples.

    Raises:
        DataError: ``espeak-ng`` or the texts are missing, a file is broken, or most utterances are too long.
    """
    spoken = _spoken(spec) if spec.source == "espeak" else _recorded(base / spec.path)
    everything = [replace(each, samples=trimmed(each.samples)) for each in spoken]
    found = tuple(each for each in everything if len(each.samples) <= length)
    too_long = len(everything) - len(found)
    if too_long > LEFT_OUT * len(everything):
        longest_s = max(len(each.samples) for each in everything) / RATE_HZ
        raise DataError(
            f"{too_long} of {len(everything)} utterances are longer than the {length / RATE_HZ:g} s that "
            f"space.sound.size allows; the longest takes {longest_s:.1f} s"
        )
    if len(found) < FEWEST:
        raise DataError(f"there are only {len(found)} utterances; at least {FEWEST} are needed")
    if not any(each.samples.any() for each in found):
        raise DataError("all utterances are silent")
    characters = sorted({sign for each in found for sign in each.text})
    return Utterances(found=found, characters=(BLANK_NAME, *characters), too_long=too_long)


def _spoken(spec: UtterancesSpec) -> Iterator[Recording]:
    words = spec.words or synthesis.WORDS
    for variant in synthesis.variants()[: spec.voices]:
        random = np.random.default_rng([1, *variant.encode()])
        for take in range(spec.utterances):
            count = int(random.integers(spec.shortest, spec.longest + 1))
            text = " ".join(words[i] for i in random.integers(0, len(words), count))
            samples = synthesis.spoken(text, variant, take=take, seed=0)
            yield Recording(samples=samples, text=text, speaker=variant)


def _recorded(folder: Path) -> Iterator[Recording]:
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder of WAV files")
    tables = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".tsv"))
    if len(tables) > 1:
        raise DataError(f"{folder}: has {len(tables)} tables ({tables[0].name}, {tables[1].name}, …); keep only one")
    for path, said, speaker in _rows_of(tables[0]) if tables else _texts_beside(folder):
        text = text_of(said)
        if not text:
            raise DataError(f"{path}: its text has no letters or digits")
        content = read_bytes(path, most=MOST_BYTES)
        samples = decoded(content, where=str(path))
        yield Recording(samples=samples, text=text, speaker=speaker, endless=endless(content))


def _rows_of(table: Path) -> Iterator[tuple[Path, str, str]]:
    """File, text and speaker of each row of a table."""
    content = read_bytes(table, most=MOST_BYTES).decode("utf-8-sig", "replace")
    rows = csv.DictReader(content.splitlines(), delimiter="\t" if table.suffix.lower() == ".tsv" else ",")
    heads = {str(head).strip().lower(): head for head in rows.fieldnames or ()}
    columns = {what: next((heads[name] for name in names if name in heads), None) for what, names in COLUMNS.items()}
    for what in ("file", "text"):
        if columns[what] is None:
            raise DataError(f"{table}: has no column {' or '.join(COLUMNS[what][:2])}; it has {', '.join(heads)}")
    for number, row in enumerate(rows, 2):
        name, said = str(row[columns["file"]] or "").strip(), str(row[columns["text"]] or "")
        path = table.parent / name
        if not name or not path.is_file():
            raise DataError(f"{table}, line {number}: the file {name!r} is not in the table's folder")
        speaker = "" if columns["speaker"] is None else str(row[columns["speaker"]] or "").strip()
        yield path, said, speaker or name


def _texts_beside(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """File, text and speaker of each WAV file that has a ``.txt`` file of the same name."""
    for path in sorted(folder.glob("*.wav")):
        beside = path.with_suffix(".txt")
        if not beside.is_file():
            raise DataError(f"{path}: there is no {beside.name} beside it, and no table of transcripts in the folder")
        yield path, read_bytes(beside, most=MOST_BYTES).decode("utf-8-sig", "replace"), path.stem


def parts_of(found: Utterances, spec: UtterancesSpec, *, bands: int, length: int) -> dict[str, Part]:
    """Splits utterances into training, validation and test clips of ``length`` samples, with noise.

    Raises:
        DataError: There are fewer than three speakers.
    """
    numbers = {sign: number for number, sign in enumerate(found.characters)}
    texts = np.full((len(found.found), max(len(each.text) for each in found.found)), BLANK, np.int64)
    for row, each in zip(texts, found.found, strict=True):
        row[: len(each.text)] = [numbers[sign] for sign in each.text]
    return clips.parts_of(found.found, texts, spec, bands=bands, length=length, seed=2)

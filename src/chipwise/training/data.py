"""Text to train on: read, deduplicated and split by whole entries, the same every time.

Related entries (terms under one parent, codes of one category) form a group, and a group lies wholly in the training
part or wholly in the validation part, so that validation never asks for a sentence whose sibling was just learnt.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chipwise.core.digest import digest
from chipwise.core.errors import DataError, SpecError
from chipwise.core.files import build
from chipwise.core.tables import Table

MINIMUM_TRAIN_BYTES = 20_000
MINIMUM_VALIDATION_BYTES = 1_000

Division = Literal["blank-lines", "lines", "files"]

SOURCES = Table(
    "text source",
    "chipwise.text_sources",
    {
        "medical-definitions": "chipwise.training.medical:read",
        "files": "chipwise.training.data:read_files",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Which text to learn and how to divide it.

    ``paths`` (file names or globs, relative to the file that names them) and ``entries`` are for the source ``files``.
    """

    source: str = "medical-definitions"
    paths: tuple[str, ...] = ()
    entries: Division = "blank-lines"
    validation_share: float = 0.06
    licence: str | None = None  # what the card says of the user's own text

    def __post_init__(self) -> None:
        if not 0.001 <= self.validation_share <= 0.5:
            raise SpecError(f"must lie between 0.001 and 0.5, not {self.validation_share}", field="validation_share")
        if self.paths and self.source == "medical-definitions":
            raise SpecError(f"{self.source} reads none; say source: files, or leave them out", field="paths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One piece of text; entries of the same ``group`` are never separated by the split."""

    text: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawText:
    """What a source hands over, before duplicates are removed and the split is made."""

    entries: tuple[Entry, ...]
    source: str  # where the text comes from, with versions
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text ready to be tokenised: no entry occurs twice, and none in both parts."""

    name: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    source: str
    licence: str
    duplicates: int  # entries that were dropped

    @property
    def bytes_train(self) -> int:
        """UTF-8 bytes of the training part."""
        return _size(self.train)

    @property
    def bytes_validation(self) -> int:
        """UTF-8 bytes of the validation part."""
        return _size(self.validation)

    @property
    def digest(self) -> str:
        """Identity of the text and its split."""
        return digest([self.train, self.validation])

    def summary(self) -> dict[str, Any]:
        """The figures that a report shows."""
        return {
            "name": self.name,
            "entries_train": len(self.train),
            "entries_val": len(self.validation),
            "bytes_train": self.bytes_train,
            "bytes_val": self.bytes_validation,
            "licence": self.licence,
            "source": self.source,
        }


def load_corpus(spec: DataSpec | Mapping[str, Any], *, base: str | Path = ".") -> Corpus:
    """Reads the text that ``spec`` names; ``base`` is the folder that relative paths start from.

    Raises:
        DataError: Text that is missing, not text, or too little.
        MissingExtra: The source's packages are not installed.
        UnknownName: No such source.
    """
    if not isinstance(spec, DataSpec):
        spec = build(DataSpec, spec, field="data")
    read: Callable[[DataSpec, Path], RawText] = SOURCES.load(spec.source)
    raw = read(spec, Path(base))
    unique, dropped = deduplicate(raw.entries)
    train, validation = split(unique, share=spec.validation_share)
    corpus = Corpus(
        name=spec.source,
        train=train,
        validation=validation,
        source=raw.source,
        licence=raw.licence,
        duplicates=dropped,
    )
    _check_size(corpus, spec)
    return corpus


def normal_form(text: str) -> str:
    """What two entries have in common when they differ by case and spacing alone."""
    return " ".join(text.split()).casefold()


def deduplicate(entries: Iterable[Entry]) -> tuple[tuple[Entry, ...], int]:
    """The first of each set of equal entries (case and spacing ignored), and how many were dropped."""
    seen: dict[str, Entry] = {}
    total = 0
    for entry in entries:
        form = normal_form(entry.text)
        if form:
            total += 1
            seen.setdefault(form, entry)
    return tuple(seen.values()), total - len(seen)


def split(entries: Iterable[Entry], *, share: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Training and validation texts, by a hash of each entry's group: adding entries moves no other entry.

    Both parts are in an order of their own (by hash), so that a prefix of one is a fair sample of it.
    """
    parts: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for entry in entries:
        chosen = int(_hash(entry.group)[:12], 16) / 16**12 < share
        parts[chosen].append((_hash(entry.text), entry.text))
    train, validation = (tuple(text for _, text in sorted(part)) for part in parts)
    return train, validation


def read_files(spec: DataSpec, base: Path) -> RawText:
    """The user's own UTF-8 text files."""
    if not spec.paths:
        raise SpecError("names no file; list the text files to learn from, such as [notes/*.txt]", field="data.paths")
    found: dict[Path, None] = {}
    for pattern in spec.paths:
        place = str(base / Path(pattern).expanduser())
        if glob.has_magic(pattern):
            matches = [Path(name) for name in sorted(glob.glob(place, recursive=True)) if Path(name).is_file()]
            if not matches:
                raise DataError(f"data.paths: {pattern!r} matches no file in {base}; correct the pattern")
            found |= dict.fromkeys(matches)
        else:
            found[Path(place)] = None
    entries = [
        Entry(text=text, group=text if spec.entries != "files" else str(path))
        for path in found
        for text in _divide(_read_text(path), spec.entries)
    ]
    return RawText(
        entries=tuple(entries),
        source=f"{len(found)} text file{'s' if len(found) > 1 else ''} of the user",
        licence=spec.licence or "not stated (the user's own text)",
    )


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; correct data.paths") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; name its files, such as {path}/*.txt") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start} is not UTF-8; text files must be plain UTF-8 (convert it, or leave it out)"
        ) from None
    if "\x00" in text:
        raise DataError(f"{path}: this is a binary file, not text; leave it out of data.paths")
    if not text.strip():
        raise DataError(f"{path}: the file is empty; leave it out of data.paths")
    return text.replace("\r\n", "\n")


def _divide(text: str, division: Division) -> Iterable[str]:
    if division == "files":
        yield text.strip()
        return
    block: list[str] = []
    for line in [*text.split("\n"), ""]:
        if division == "lines":
            if line.strip():
                yield line.strip()
        elif line.strip():
            block.append(line.rstrip())
        elif block:
            yield "\n".join(block)
            block = []


def _check_size(corpus: Corpus, spec: DataSpec) -> None:
    for part, have, need in (
        ("train on", corpus.bytes_train, MINIMUM_TRAIN_BYTES),
        ("validate on", corpus.bytes_validation, MINIMUM_VALIDATION_BYTES),
    ):
        if have < need:
            hint = "add text"
            if spec.source == "files" and spec.entries == "files":
                hint = "add files, or divide them with entries: blank-lines"
            elif spec.source == "files" and spec.entries == "blank-lines":
                hint = "add text, or divide it with entries: lines"
            raise DataError(
                f"data: too little text to {part}: {have:,} bytes in {len(corpus.train) + len(corpus.validation):,} "
                f"different entries, {need:,} bytes are needed; {hint}"
            )


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _hash(text: str) -> str:
    return hashlib.sha256(normal_form(text).encode()).hexdigest()

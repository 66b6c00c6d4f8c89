"""Reads training text, removes duplicates, and splits its entries into training, validation and test parts.

Related entries (terms under one parent, codes of one category) form a group. All entries of a group are in the same
part, so that no model is evaluated on text that is closely related to its training text. Models are selected on the
validation part; the test part is used only to score the selected models.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chipwise.core.digest import digest
from chipwise.core.files import build, read_bytes
from chipwise.core.tables import Table
from chipwise.errors import DataError, SpecError, counted

MOST_TEXT_BYTES = 2**31  # per file; files are read whole
MINIMUM_TRAIN_BYTES = 20_000
MINIMUM_HELD_OUT_BYTES = 1_000  # least bytes of the validation part, and of the test part
ENOUGH_ENTRIES = 20  # fewest entries from which some are held out
PASSAGE = 600  # characters per piece of text without natural divisions

Division = Literal["blank-lines", "lines", "files", "passages"]

SOURCES = Table(
    "text source",
    "chipwise.text_sources",
    {
        "medical-definitions": "chipwise.training.data.medical:read",
        "files": "chipwise.training.data.text:read_files",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The ``data`` of a run file for text: its source, and how it is split.

    ``paths`` and ``entries`` apply to the source ``files``. ``paths`` are file names or globs, relative to the run
    file's folder; ``package:NAME/GLOB`` means files in an installed package. ``entries`` says how files are divided
    into entries: at blank lines, into lines, one per file, or into passages of about 600 characters. The test part is
    as large as the validation part unless ``test_share`` is given.
    """

    source: str = "medical-definitions"
    paths: tuple[str, ...] = ()
    entries: Division = "blank-lines"
    validation_share: float = 0.06
    test_share: float | None = None  # validation_share if not given
    licence: str | None = None  # licence of the user's own text, for the model card

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            share = getattr(self, name)
            if share is not None and not 0.001 <= share <= 0.5:
                raise SpecError(f"must lie between 0.001 and 0.5, not {share}", field=name)
        if self.validation_share + self.share_of_test > 0.9:
            raise SpecError(
                f"leaves less than a tenth of the text for training, because the test part takes "
                f"{self.share_of_test:g}; lower validation_share, or set test_share",
                field="validation_share",
            )
        if self.paths and self.source == "medical-definitions":
            raise SpecError(
                f"`source: {self.source}` takes no paths; leave them out, or set `source: files`", field="paths"
            )

    @property
    def share_of_test(self) -> float:
        """Share of the groups that form the test part."""
        return self.validation_share if self.test_share is None else self.test_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One text; the split never separates entries of the same ``group``."""

    text: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawText:
    """Text of a source, before duplicates are removed and the text is split."""

    entries: tuple[Entry, ...]
    source: str  # origin of the text, with versions
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Text ready to be tokenised: entries are unique and each belongs to one part."""

    name: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...] = ()
    source: str
    licence: str

    @property
    def bytes_train(self) -> int:
        """UTF-8 bytes of the training part."""
        return _size(self.train)

    @property
    def bytes_validation(self) -> int:
        """UTF-8 bytes of the validation part."""
        return _size(self.validation)

    @property
    def bytes_test(self) -> int:
        """UTF-8 bytes of the test part."""
        return _size(self.test)

    @property
    def digest(self) -> str:
        """Digest that identifies the text and its split."""
        return digest([self.train, self.validation, self.test])

    def summary(self) -> dict[str, object]:
        """Facts about the text for reports."""
        return {
            "name": self.name,
            "entries_train": len(self.train),
            "entries_val": len(self.validation),
            "entries_test": len(self.test),
            "bytes_train": self.bytes_train,
            "bytes_val": self.bytes_validation,
            "bytes_test": self.bytes_test,
            "licence": self.licence,
            "source": self.source,
        }


def load_corpus(spec: DataSpec | Mapping[str, object], *, base: str | Path = ".") -> Corpus:
    """Reads and splits the text that ``spec`` names; relative paths start from the folder ``base``.

    Raises:
        DataError: A file is missing or is not a text file, or there is too little text.
        MissingExtra: The source's packages are not installed.
        UnknownName: There is no source of this name.
    """
    if not isinstance(spec, DataSpec):
        spec = build(DataSpec, spec, field="data")
    read: Callable[[DataSpec, Path], RawText] = SOURCES.load(spec.source)
    raw = read(spec, Path(base))
    train, validation, test = split(deduplicate(raw.entries), validation=spec.validation_share, test=spec.share_of_test)
    corpus = Corpus(
        name=spec.source,
        train=train,
        validation=validation,
        test=test,
        source=raw.source,
        licence=raw.licence,
    )
    _check_size(corpus, spec)
    return corpus


def normal_form(text: str) -> str:
    """An entry in lower case with normalised spacing, for finding duplicates."""
    return " ".join(text.split()).casefold()


def deduplicate(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Removes empty entries, and those that repeat an earlier one (ignoring case and spacing)."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        if form := normal_form(entry.text):
            seen.setdefault(form, entry)
    return tuple(seen.values())


def split(
    entries: Iterable[Entry], *, validation: float, test: float
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Splits entries into training, validation and test texts by a hash of each entry's group.

    Adding entries does not move other entries to another part, and the size of the test part does not change the
    validation part. Each part is ordered by hash, so that its first entries are a fair sample of it.
    """
    parts: tuple[list[tuple[str, str]], ...] = ([], [], [])
    for entry in entries:
        place = int(_hash(entry.group)[:12], 16) / 16**12
        number = 1 if place < validation else 2 if place < validation + test else 0
        parts[number].append((_hash(entry.text), entry.text))
    first, second, third = (tuple(text for _, text in sorted(part)) for part in parts)
    return first, second, third


def files_of(paths: Iterable[str], base: Path) -> list[Path]:
    """Files that match the names and patterns relative to ``base``, each file once.

    Raises:
        DataError: A pattern matches no file.
    """
    found: dict[Path, None] = {}
    for pattern in paths:
        place = str(_in_package(pattern) or base / Path(pattern).expanduser())
        if glob.has_magic(pattern):
            matches = [Path(name) for name in sorted(glob.glob(place, recursive=True)) if Path(name).is_file()]
            if not matches:
                raise DataError(f"{pattern!r} matches no file in {base}; correct the pattern", field="data.paths")
            found |= dict.fromkeys(matches)
        else:
            found[Path(place)] = None
    return list(found)


def read_files(spec: DataSpec, base: Path) -> RawText:
    """Reads the user's UTF-8 text files."""
    if not spec.paths:
        raise SpecError("names no file; list the text files to learn from, such as [notes/*.txt]", field="data.paths")
    found = files_of(spec.paths, base)
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


def _in_package(pattern: str) -> Path | None:
    """The files of ``package:NAME/PATTERN`` inside an installed package; None for other patterns.

    Raises:
        DataError: The package is not installed.
    """
    if not pattern.startswith("package:"):
        return None
    name, _, inside = pattern.removeprefix("package:").partition("/")
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise DataError(f"the package {name!r} is not installed; install it, or name files", field="data.paths")
    return Path(found.submodule_search_locations[0]) / inside


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name its files, such as {path}/*.txt", field="data.paths")
    try:
        content = read_bytes(path, most=MOST_TEXT_BYTES)
    except SpecError as error:
        raise DataError(f"{path}: {error.message}", field="data.paths") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start} is not UTF-8; text files must be plain UTF-8 (convert it, or leave it out)",
            field="data.paths",
        ) from None
    if "\x00" in text:
        raise DataError(f"{path}: this is a binary file, not text; leave it out", field="data.paths")
    if not text.strip():
        raise DataError(f"{path}: the file is empty; leave it out", field="data.paths")
    return text.replace("\r\n", "\n")


def usual_division(paths: Iterable[Path]) -> Division:
    """How files are divided by default: at blank lines if this gives enough entries for a split, else into passages."""
    found = 0
    for path in paths:
        found += sum(1 for _ in _divide(_read_text(path), "blank-lines"))
        if found >= ENOUGH_ENTRIES:
            return "blank-lines"
    return "passages"


def _passages(text: str) -> Iterable[str]:
    """Divides text into passages of about ``PASSAGE`` characters that end at word ends."""
    piece: list[str] = []
    held = 0
    for word in text.split():
        piece.append(word)
        held += len(word) + 1
        if held >= PASSAGE:
            yield " ".join(piece)
            piece, held = [], 0
    if piece:
        yield " ".join(piece)


def _divide(text: str, division: Division) -> Iterable[str]:
    if division in ("files", "passages"):
        yield from [text.strip()] if division == "files" else _passages(text)
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
        ("validate on", corpus.bytes_validation, MINIMUM_HELD_OUT_BYTES),
        ("test on", corpus.bytes_test, MINIMUM_HELD_OUT_BYTES),
    ):
        if have < need:
            hint = "add text"
            if spec.source == "files" and spec.entries == "files":
                hint = "add files, or divide them with entries: blank-lines"
            elif spec.source == "files" and spec.entries == "blank-lines":
                hint = "add text, or divide it with entries: lines, or passages of long texts"
            entries = counted(len(corpus.train) + len(corpus.validation) + len(corpus.test), "entry", "entries")
            raise DataError(
                f"too little text to {part}: {have:,} bytes, and at least {need:,} are needed (all the text is "
                f"{entries} without repetitions); {hint}",
                field="data",
            )


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _hash(text: str) -> str:
    return hashlib.sha256(normal_form(text).encode()).hexdigest()

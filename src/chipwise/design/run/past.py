"""Stores the training results of all searches, so that a later search on the same data can start from them.

Each result is a line of JSON in ``trainings.jsonl`` in the user's data folder: a design's choices, its number of
training tokens and its loss, without data or weights. Losses are comparable only if data, task and recipe are equal, so
a run reads only results for which all three equal its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chipwise.core.digest import digest, plain
from chipwise.core.files import build, check_output, parse_json, read_text, storage, write_atomic
from chipwise.core.places import data_folder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, now
from chipwise.errors import SpecError
from chipwise.model.space.search_space import SearchSpace
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.protocol import TaskData

SCHEMA = "chipwise.past_training/1"
MOST = 500  # most past training runs that a search begins with; the latest are taken

Known = tuple[tuple[int, ...], int, float]  # row in a space, tokens, loss


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTraining:
    """A finished training run of an earlier search.

    Attributes:
        data: Digest of the task, its data and the training recipe.
        task: Name of the task.
        run: Name of the run.
        added: Time at which the result was stored, in ISO 8601.
        choices: Choices of the design, as :meth:`SearchSpace.choices` gives them.
        tokens: Number of tokens (or positions) that the design was trained on.
        loss: Validation loss with weights in the format that ``choices`` names.
        seed: Random seed of the run.
    """

    data: str
    task: str
    run: str
    added: str
    choices: Mapping[str, object]
    tokens: int
    loss: float
    seed: int
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise SpecError(
                f"must be {SCHEMA}, the format that this version reads, not {self.schema!r}", field="schema"
            )
        if self.tokens < 1:
            raise SpecError(f"must be at least 1, not {self.tokens}", field="tokens")
        if not (math.isfinite(self.loss) and self.loss > 0):
            raise SpecError(f"must be a positive number, not {self.loss}", field="loss")

    @property
    def key(self) -> str:
        """Key of the training run; two lines with the same key describe the same run."""
        return digest([self.data, self.choices, self.tokens, self.seed])


class PastTrainings:
    """The file of this user's past training runs.

    Args:
        path: The file. Default: ``trainings.jsonl`` in the data folder (``CHIPWISE_HOME`` if set).
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = data_folder() / "trainings.jsonl" if path is None else Path(path)

    def entries(self) -> list[PastTraining]:
        """All past training runs, oldest first.

        Raises:
            SpecError: A line is damaged or has another version's format; the message names the line.
        """
        if not self.path.exists():
            return []
        return self._read(
            self.path, "; delete the file with chipwise prior reset, or ignore it with prior: shipped in the run"
        )

    @staticmethod
    def _read(path: Path, hint: str = "") -> list[PastTraining]:
        found: dict[str, PastTraining] = {}
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            if line.strip():
                place = f"{path}, line {number}"
                try:
                    one = build(PastTraining, parse_json(line, name=place), file=place)
                except SpecError as error:
                    raise SpecError(f"{error}{hint}") from None
                found.setdefault(one.key, one)
        return list(found.values())

    def add(self, items: Iterable[PastTraining]) -> int:
        """Appends the ``items`` that are not stored yet; returns how many were added."""
        known = {one.key for one in self.entries()}
        new = {one.key: one for one in items if one.key not in known}
        if new:
            with storage(self.path.parent):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                place = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                try:
                    os.write(place, _lines(new.values()).encode())  # one call, so that two runs' lines do not mix
                finally:
                    os.close(place)
        return len(new)

    def export(self, path: str | Path) -> int:
        """Writes all past training runs to a file that :meth:`import_` can read; returns their number."""
        check_output(path)
        found = self.entries()
        write_atomic(path, _lines(found))
        return len(found)

    def import_(self, path: str | Path) -> int:
        """Adds the training runs of an exported file; returns how many were new.

        Raises:
            SpecError: The file is missing or a line is not a training run; then nothing is added.
        """
        items = self._read(Path(path))
        if not items:
            raise SpecError("holds no training runs; give a file that chipwise prior export wrote", file=str(path))
        return self.add(items)

    def reset(self) -> None:
        """Deletes the file."""
        with storage(self.path):
            self.path.unlink(missing_ok=True)


def _lines(items: Iterable[PastTraining]) -> str:
    return "".join(f"{json.dumps(plain(asdict(one)), allow_nan=False)}\n" for one in items)


def data_key(spec: RunSpec, data: TaskData) -> str:
    """Digest of everything that a loss depends on, except the design, its tokens and the seed."""
    return digest([spec.task, dict(spec.data), dict(data.summary()), Recipe(), dict(data.recipe)])


def known_before(spec: RunSpec, space: SearchSpace, data: TaskData) -> list[Known]:
    """Past training runs on this data whose designs are in ``space``, oldest first; empty unless ``prior`` is ``auto``.

    Only the latest ``MOST`` of them are returned.
    """
    if spec.prior != "auto":
        return []
    found, key = [], data_key(spec, data)
    for one in PastTrainings().entries():
        if one.data == key:
            try:
                row = space.row(one.choices)
            except (SpecError, KeyError):  # a design of another space
                continue
            found.append((tuple(int(i) for i in row), one.tokens, one.loss))
    return found[-MOST:]


def store_trainings(spec: RunSpec, data: TaskData, items: Sequence[Candidate]) -> int:
    """Stores the finished training runs of a search; returns how many were new."""
    key, when = data_key(spec, data), now()
    return PastTrainings().add(
        PastTraining(
            data=key,
            task=spec.task,
            run=spec.name,
            added=when,
            choices=item.notes.choices,
            tokens=rung.tokens,
            loss=rung.quantised_loss,
            seed=spec.seed,
        )
        for item in items
        if item.row is not None
        for rung in item.rungs
    )

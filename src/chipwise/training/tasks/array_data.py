"""Base class for the data of tasks that have one file of arrays, and one forward pass per request."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import digest
from chipwise.core.files import build, read_mapping, storage, write_json
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.errors import MeasurementError, StudyError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.arrays import ArrayDataset
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.protocol import Exported, Losses

SpecT = TypeVar("SpecT")
InputsT = TypeVar("InputsT")
DatasetT = TypeVar("DatasetT", bound=ArrayDataset)


class ArrayData(ABC, Generic[SpecT, InputsT, DatasetT]):
    """Base class for a :class:`chipwise.training.tasks.protocol.TaskData` with one file of arrays.

    Args:
        spec: Source of the data: the run file's ``data``.
        base: Folder from which relative paths in ``spec`` start.
        folder: Folder for the file of arrays.
        inputs: Description of the model inputs in the run file's ``space``.

    Attributes:
        spec_type: Type of ``spec``, into which a run file's ``data`` is parsed.
        part: Field of a run file's ``space`` that describes inputs.
        dataset: Class of the data set in the file.
        kind: Key of ``dataset`` in ``DATASETS``.
        name: Name of the file, and the word for examples in messages.
        identifying: Fields of ``inputs`` on which the file's content depends.
    """

    recipe: Mapping[str, object]
    quick: int
    spec_type: type[SpecT]
    part: str
    dataset: type[DatasetT]
    kind: str
    name: str
    identifying: tuple[str, ...]

    def __init__(self, spec: SpecT, base: Path, folder: Path, inputs: InputsT) -> None:
        self.spec, self.base, self.folder, self.inputs = spec, base, folder, inputs

    @classmethod
    def open(cls, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> Self:
        """Prepares the task's data for a run."""
        return cls(build(cls.spec_type, data, field="data"), base, folder, getattr(space, cls.part))

    @property
    def path(self) -> Path:
        """Path of the file of arrays."""
        return self.folder / f"{self.name}.npz"

    @property
    def facts(self) -> Path:
        """Path of the JSON file with facts about the data: its source, its licence, and facts that the task needs."""
        return self.folder / f"{self.name}.json"

    def identity(self) -> str:
        """Digest of everything that determines the file."""
        return digest([self.spec, *(getattr(self.inputs, field) for field in self.identifying)])

    def prepare(self) -> None:
        """Writes the file of arrays, if it is missing."""
        identity = self.identity()
        if self.facts.exists():
            if read_mapping(self.facts).get("identity") != identity:
                raise StudyError(f"{self.folder}: contains different {self.name}; start again with --restart")
            return
        made, facts = self.make()
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        made.save(self.path)
        write_json(self.facts, {**facts, "identity": identity})  # written last: it marks the file of arrays as complete

    @abstractmethod
    def make(self) -> tuple[DatasetT, Mapping[str, object]]:
        """Creates the data set; also returns facts about it, at least ``source`` and ``licence``."""

    @cached_property
    def arrays(self) -> DatasetT:
        """Loads the data set from the file."""
        return self.dataset.load(self.path)

    def summary(self) -> Mapping[str, object]:
        """Name, source and licence of the data, and the number of entries and of bytes in each part."""
        facts = read_mapping(self.facts)
        found = {"name": getattr(self.spec, "source"), "source": facts["source"], "licence": facts["licence"]}  # noqa: B009
        for part, (entries, size) in zip(("train", "val", "test"), self.arrays.sizes(), strict=True):
            found |= {f"entries_{part}": entries, f"bytes_{part}": size}
        return found

    def data(self, arch: ArchSpec) -> DataFile:
        """The file of arrays as training data, the same for all architectures."""
        return DataFile(path=str(self.path), kind=self.kind)

    def step_tokens(self, arch: ArchSpec) -> int:
        """Number of positions in a batch."""
        batch: int = build(Recipe, self.recipe).batch_windows
        return batch * arch.max_tokens

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Losses of the exported graph, which is run on one example at a time.

        All examples of a group (:meth:`alike`) together count as one entry.
        """
        values, sizes = self.arrays.metric(self.outputs(item, split)[0], split)
        if not np.isfinite(values).all():
            raise MeasurementError(f"{item.folder}: the exported model's outputs are not finite")
        return Losses.of(values, sizes, self.alike(split))

    def alike(self, split: Split) -> NDArray[np.int64] | None:
        """Group ids of examples, such as speakers; standard errors are over groups. None: no groups."""
        return None

    def outputs(self, item: Exported, split: Split) -> tuple[NDArray[np.float32], float]:
        """Outputs (n, …) of the exported graph for a part's examples, and the median seconds of a pass."""
        count = self.arrays.count(split)
        with exported(item) as session:
            return one_by_one(session, (self.arrays.examples(split, slice(i, i + 1)) for i in range(count)))

    def answered(
        self, winner: Exported, reference: Exported | None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, float]]:
        """Two mappings from model to result: the outputs on test data, and the median seconds of a pass.

        The keys of both are ``winner`` and, if there is a reference design, ``baseline``.
        """
        items = {"winner": winner} | ({} if reference is None else {"baseline": reference})
        found = {who: self.outputs(item, "test") for who, item in items.items()}
        return {who: given for who, (given, _) in found.items()}, {who: taken for who, (_, taken) in found.items()}

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes the Hugging Face folder, including the files of :meth:`shipped`."""
        save_pretrained(item.design.arch, item.weights, None, folder, dict(files))
        for name, content in self.shipped(item.design.arch).items():
            held = read_mapping(folder / name) if name == "config.json" else {}
            write_json(folder / name, {**held, **content})

    @abstractmethod
    def shipped(self, arch: ArchSpec) -> Mapping[str, Mapping[str, object]]:
        """Additional JSON files of the Hugging Face folder, by name; ``config.json`` is merged with the model's."""


@contextmanager
def exported(item: Exported) -> Iterator[Any]:
    """Context that exports a design temporarily to its trial's folder; yields a session of the exported file."""
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime

    path = item.folder / "judged.onnx"
    with storage(path):
        export(item.design, item.weights, path, packing=item.packing)
    try:
        yield OnnxRuntime().open(path, capacity=1, batch=1, threads=1, options={})
    finally:
        path.unlink(missing_ok=True)


def one_by_one(session: Any, requests: Iterable[tuple[AnyArray, ...]]) -> tuple[NDArray[np.float32], float]:
    """Outputs (n, …) of requests with one example each, and the median seconds of a pass."""
    found, seconds = [], []
    for request in requests:
        start = time.perf_counter()
        found.append(session.prefill(*request)[0].copy())
        seconds.append(time.perf_counter() - start)
    return np.stack(found), float(np.median(seconds))


def first_and_wrong(labels: NDArray[np.int64], said: NDArray[np.int64], *, count: int) -> list[int]:
    """Indices of up to ``count`` examples to show: half are the first of each label, half are predicted wrongly."""
    turns = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    first = [int(rows[turn]) for turn in range(count) for rows in turns if turn < len(rows)][: count // 2]
    wrong = [int(i) for i in np.flatnonzero(labels != said) if int(i) not in first]
    return first + wrong[: count - len(first)]


def confusion(labels: NDArray[np.int64], said: NDArray[np.int64], classes: int) -> list[list[int]]:
    """Number of examples by label (rows) and prediction (columns)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, said), 1)
    return counts.tolist()

"""The protocol of tasks for a search, and the table of tasks. One folder each.

A search knows no domain. A task comes in two parts: :class:`Task` is a record of settings that need no data (metric,
defaults, reference designs) and loads nothing heavy; :class:`TaskData` is a task with its data in the folder of a run:
what trainings read, how an exported file is evaluated, and what is shipped.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray, Float64Array
from chipwise.core.tables import Table
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.ops.workload import Workload
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.training.data.dataset import DataFile, Split
from chipwise.training.laws.scaling import Law
from chipwise.training.tasks.metric import Metric

TASKS = Table(
    "task",
    "chipwise.domains",
    {
        "text": "chipwise.training.tasks.text.task:TEXT",
        "diffusion": "chipwise.training.tasks.diffusion.task:DIFFUSION",
        "vision": "chipwise.training.tasks.vision.task:VISION",
        "multimodal": "chipwise.training.tasks.multimodal.task:MULTIMODAL",
        "series": "chipwise.training.tasks.series.task:SERIES",
        "sentences": "chipwise.training.tasks.sentences.task:SENTENCES",
        "speech": "chipwise.training.tasks.speech.task:SPEECH",
        "transcripts": "chipwise.training.tasks.transcripts.task:TRANSCRIPTS",
        "ranking": "chipwise.training.tasks.ranking.task:RANKING",
    },
)
"""Tasks by the name that a run file gives as ``task``; ``chipwise.tasks`` are evaluations of text models."""


LOAD_TEXT = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

# trust_remote_code is needed only where config.json names a modelling file of its own (layers that differ)
model = AutoModelForCausalLM.from_pretrained("winner", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("winner", trust_remote_code=True)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabels:
    """Words for reports and messages."""

    data: str = "text"  # what is learnt: "trained on this text", "the test text"
    entry: tuple[str, str] = ("entry", "entries")  # one piece of it, and several
    tokens: str = "tokens"  # what the tokens of a training are
    latency: str = "time per token"  # the metric of time that designs are compared by
    curve: str = "bits per byte"  # unit of a training's curve
    verb: str = "predicts the text"  # what a good model does better
    reference: str = "Llama-style transformer"  # what reference designs are
    derived: tuple[str, ...] = ()  # metrics of its requests that follow from their costs, such as ``rtf``
    load: str = LOAD_TEXT  # Python that loads ``winner/`` in its ecosystem


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Losses of an exported model on each entry of a part of the data, with the entries' sizes, each (n,).

    Entries that are alike, such as clips of one speaker, stand together as one.

    The loss of all is ``values.sum() / sizes.sum()``: bits and bytes of each text, or 0 and 1 for each image.
    """

    values: Float64Array
    sizes: Float64Array

    @classmethod
    def of(cls, values: Float64Array, sizes: Float64Array, alike: NDArray[np.int64] | None = None) -> Losses:
        """Losses summed over examples with equal numbers in ``alike`` (from 0)."""
        if alike is None:
            return cls(values=values, sizes=sizes)
        lost, size = (np.bincount(alike, each).astype(np.float64) for each in (values, sizes))
        return cls(values=lost[size > 0], sizes=size[size > 0])

    @property
    def loss(self) -> float:
        """Loss of all entries together."""
        return float(self.values.sum() / self.sizes.sum())

    @property
    def std_error(self) -> float | None:
        """Standard error of :attr:`loss` over entries; None of one entry."""
        count = len(self.values)
        if count < 2:
            return None
        off = (self.values - self.loss * self.sizes) / self.sizes.sum()
        return float(np.sqrt(count / (count - 1) * (off**2).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A trained and exported design, as its task evaluates and shows it."""

    design: Design
    weights: Mapping[str, AnyArray]  # by the names of the torch module, FP32
    folder: Path  # of its trial; holds ``model.onnx``
    packing: Packing = NEAREST  # of the matrices of its files


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a report: HTML without scripts, which may hold SVG and images as data URIs."""

    name: str  # such as ``examples``
    title: str
    html: str
    text: str = ""  # Markdown of it for the card; nothing where it is for the report alone


def _nothing(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The part of a run file that a task requires.

    Attributes:
        part: The field of ``space`` that describes what models read; none if every space does.
        message: The error where it is missing, with an example.
        departures: Field and error of each other reason why models of a space cannot serve a workload.
    """

    part: str = ""
    message: str = ""
    departures: Callable[[SpaceSpec, Workload], Iterator[tuple[str, str]]] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task settings that need no data, as a run file's ``task`` names them. Importing one loads no torch.

    Attributes:
        name: In run files.
        forms: Kinds of models that it trains, by their names in ``model/kinds``.
        metric: What is minimised or maximised.
        latency_metric: The metric of time that designs are compared by: ``tpot_p50`` where tokens are generated,
            ``ttft_p50`` where a request is one pass.
        labels: What things are called.
        law: Expected loss by size and data before anything was trained; its level is fitted where it is unknown.
        needs: What the run file must say.
        defaults: Fields of a run file that may be left out; none if nothing is usual.
        references: Choices of reference designs around a space: what a careful engineer would draw, in proportions of
            the field. Values outside the space's lists are allowed.
        family: What distinguishes reference designs that must be trained to be compared, such as a vocabulary. Of each
            family the largest design within the limits gets a first training.
        data: ``module:class`` of its :class:`TaskData`, loaded when a run opens it.
        report_sections: What a person wants to see, from what :meth:`TaskData.samples` gave and the record kept.
        per_matrix: Whether finalists get a format for each matrix, by measured time and loss, where the space has
            FP32 and narrower formats.
    """

    name: str
    forms: tuple[str, ...]
    metric: Metric
    latency_metric: str
    labels: TaskLabels
    law: Law
    needs: Need
    defaults: Mapping[str, object]
    references: Callable[[SpaceSpec], Iterator[dict[str, object]]]
    family: Callable[[Mapping[str, object]], Hashable]
    data: str
    report_sections: Callable[[Mapping[str, object]], Sequence[Section]]
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Checks that models of the space can serve the workload.

        Raises:
            SpecError: They cannot; the field is named.
        """
        if self.needs.part and getattr(space, self.needs.part) is None:
            raise SpecError(self.needs.message, field=f"space.{self.needs.part}")
        for field, message in self.needs.departures(space, workload):
            raise SpecError(message, field=field)

    def open(self, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """The task with its data; arguments and errors are those of :meth:`TaskData.open`."""
        module, _, name = self.data.partition(":")
        kind: type[TaskData] = getattr(importlib.import_module(module), name)
        return kind.open(data, base=base, folder=folder, space=space)


class TaskData(Protocol):
    """A task with its data in the folder of a run. Deterministic.

    Attributes:
        recipe: Fields of ``Recipe`` that differ from its defaults.
        quick: Size of the first part of the validation data that short trainings are evaluated on (see
            ``Dataset.judge``).
    """

    recipe: Mapping[str, object]
    quick: int

    @classmethod
    def open(cls, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> Self:
        """The data of a run.

        Args:
            data: The run file's ``data``.
            base: Where its relative paths start.
            folder: Where files that trainings read are kept.
            space: The run's space.

        Raises:
            DataError: Data that is missing or too little.
            MissingExtra: A package that the data comes from is not installed.
        """
        ...

    def prepare(self) -> None:
        """Makes the files that trainings read, where they are missing.

        Raises:
            StudyError: The folder holds other data.
        """
        ...

    def summary(self) -> Mapping[str, object]:
        """Fields of ``reporting.record.DataSummary``: name, source, licence, entries and bytes of each part."""
        ...

    def data(self, arch: ArchSpec) -> DataFile:
        """The training data of models of this architecture."""
        ...

    def step_tokens(self, arch: ArchSpec) -> int:
        """Positions that one step of a training holds, without reading the data."""
        ...

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of data per position in designs of these rows, (n,)."""
        ...

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Losses of the exported graph on ``split``, computed by its runtime.

        May write a temporary export next to the model.

        Raises:
            MeasurementError: The graph's outputs are not finite.
        """
        ...

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """JSON for ``Task.report_sections``: outputs of winner and reference design on test data."""
        ...

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes the ecosystem's files (such as a Hugging Face folder), and additional text files."""
        ...


def task_named(name: str) -> Task:
    """The task of this name.

    Raises:
        UnknownName: The name is unknown.
    """
    found: Task = TASKS.load(name)
    return found

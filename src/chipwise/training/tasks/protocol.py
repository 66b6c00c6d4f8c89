"""The protocol of tasks, and the table of tasks. Each task has a folder.

All parts of a search that depend on the domain are in a task. :class:`Task` contains the settings that need no data
(metric, defaults, reference designs), and imports no heavy libraries. :class:`TaskData` is a task with its data in a
run's folder: training data, evaluation of exported files, and files for users.
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
from chipwise.training.laws.operators import NOTHING_KNOWN, OperatorPrior
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
"""Tasks by the value of a run file's ``task``. (The entry points ``chipwise.tasks`` are evaluations of text models.)"""


LOAD_TEXT = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

# trust_remote_code is needed only where config.json names a modelling file of its own (layers that differ)
model = AutoModelForCausalLM.from_pretrained("winner", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("winner", trust_remote_code=True)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabels:
    """A task's words for reports and messages."""

    data: str = "text"  # name of the data: "trained on this text", "the test text"
    entry: tuple[str, str] = ("entry", "entries")  # one item of the data, in singular and plural
    tokens: str = "tokens"  # name of the positions that a training run reads
    latency: str = "time per token"  # latency metric that designs are compared by
    curve: str = "bits per byte"  # unit of training curves
    verb: str = "predicts the text"  # verb phrase for what a better model does better
    reference: str = "Llama-style transformer"  # description of the reference designs
    derived: tuple[str, ...] = ()  # derived metrics of the task's requests, such as ``rtf``
    load: str = LOAD_TEXT  # Python code that loads ``winner/``


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Losses of an exported model on the entries of one split, and the sizes of the entries; both (n,).

    Related entries, such as clips of one speaker, count as one entry.

    The overall loss is ``values.sum() / sizes.sum()``. For text, values are bits and sizes bytes; for images, values
    are 0 or 1 and sizes 1.
    """

    values: Float64Array
    sizes: Float64Array

    @classmethod
    def of(cls, values: Float64Array, sizes: Float64Array, alike: NDArray[np.int64] | None = None) -> Losses:
        """Combines examples with the same group id in ``alike`` (ids from 0): sums their losses and sizes."""
        if alike is None:
            return cls(values=values, sizes=sizes)
        lost, size = (np.bincount(alike, each).astype(np.float64) for each in (values, sizes))
        return cls(values=lost[size > 0], sizes=size[size > 0])

    @property
    def loss(self) -> float:
        """Overall loss of all entries."""
        return float(self.values.sum() / self.sizes.sum())

    @property
    def std_error(self) -> float | None:
        """Standard error of :attr:`loss` over entries; None for a single entry."""
        count = len(self.values)
        if count < 2:
            return None
        off = (self.values - self.loss * self.sizes) / self.sizes.sum()
        return float(np.sqrt(count / (count - 1) * (off**2).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A trained and exported design, with what its task needs to evaluate and show it."""

    design: Design
    weights: Mapping[str, AnyArray]  # by the torch module's names, in FP32
    folder: Path  # the trial's folder, with ``model.onnx``
    packing: Packing = NEAREST  # packing of the matrices in the exported files


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A report section: HTML without scripts, which may contain SVG and images as data URIs."""

    name: str  # such as ``examples``
    title: str
    html: str
    text: str = ""  # Markdown for the model card; empty if the section is only for the report


def _nothing(space: SpaceSpec, workload: Workload) -> Iterator[tuple[str, str]]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The part of a run file's space that a task requires.

    Attributes:
        part: Required field of ``space``, which describes model inputs; empty if the task needs none.
        message: Error message if the field is missing, with an example.
        departures: Returns all other reasons why a space's models cannot serve a workload: fields and error messages.
    """

    part: str = ""
    message: str = ""
    departures: Callable[[SpaceSpec, Workload], Iterator[tuple[str, str]]] = _nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Settings of a task that need no data. Run files select a task by ``task``. Importing a task does not load torch.

    Attributes:
        name: Name in run files.
        forms: Kinds of models that the task trains, by their names in ``model/kinds``.
        metric: The quality metric.
        latency_metric: The latency metric for comparing designs: ``tpot_p50`` if tokens are generated, ``ttft_p50`` if
            a request is one pass.
        labels: Words for reports and messages.
        law: Prior scaling law of the loss, used before the first training runs. If its overall factor is unknown, the
            factor is fitted to training runs.
        needs: What the space in a run file must contain.
        defaults: Default values of run file fields.
        references: Returns reference designs for a space, each as a mapping of choices to values: conventional designs
            in the field's usual proportions. Values may be outside the space's lists.
        family: Returns a design's family, such as its vocabulary. Families can only be compared by training, so the
            largest design of each family within the limits is trained first.
        data: ``module:class`` of the task's :class:`TaskData`, which is imported when a run opens its data.
        report_sections: Builds the task's report sections from the output of :meth:`TaskData.samples`, which is stored
            in the run's record.
        operators: Prior knowledge about operators, before any training run.
        per_matrix: Whether each matrix of a finalist gets its own format, chosen by measured time and loss, if the
            space has FP32 and narrower formats.
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
    operators: OperatorPrior = NOTHING_KNOWN
    per_matrix: bool = False

    def require_fit(self, workload: Workload, space: SpaceSpec) -> None:
        """Checks that models of the space can serve the workload.

        Raises:
            SpecError: The models cannot serve it; the message names the field.
        """
        if self.needs.part and getattr(space, self.needs.part) is None:
            raise SpecError(self.needs.message, field=f"space.{self.needs.part}")
        for field, message in self.needs.departures(space, workload):
            raise SpecError(message, field=field)

    def open(self, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> TaskData:
        """Opens the task's data; arguments and errors are those of :meth:`TaskData.open`."""
        module, _, name = self.data.partition(":")
        kind: type[TaskData] = getattr(importlib.import_module(module), name)
        return kind.open(data, base=base, folder=folder, space=space)


class TaskData(Protocol):
    """A task with its data in a run's folder. Its results are deterministic.

    Attributes:
        recipe: Fields of ``Recipe`` with values that differ from the defaults.
        quick: Bytes of validation text, or number of validation examples, on which short training runs are evaluated.
    """

    recipe: Mapping[str, object]
    quick: int

    @classmethod
    def open(cls, data: Mapping[str, object], *, base: Path, folder: Path, space: SpaceSpec) -> Self:
        """Opens the data of a run.

        Args:
            data: The run file's ``data``.
            base: Folder from which relative paths start.
            folder: Folder for the files that training runs read.
            space: The run's space.

        Raises:
            DataError: The data is missing or too small.
            MissingExtra: The package that contains the data is not installed.
        """
        ...

    def prepare(self) -> None:
        """Writes the files that training runs read, if they are missing.

        Raises:
            StudyError: The folder contains different data.
        """
        ...

    def summary(self) -> Mapping[str, object]:
        """Fields of :class:`chipwise.design.report.record.DataSummary`.

        They are name, source and licence of the data, and the number of entries and of bytes in each part.
        """
        ...

    def data(self, arch: ArchSpec) -> DataFile:
        """The training data for models of this architecture."""
        ...

    def step_tokens(self, arch: ArchSpec) -> int:
        """Number of positions in one training step, computed without reading the data."""
        ...

    def bytes_per_token(self, space: SearchSpace, rows: Rows) -> Float64Array:
        """Bytes of data per position, (n,), for designs encoded as rows of integers (genes)."""
        ...

    def losses(self, item: Exported, *, split: Split) -> Losses:
        """Losses of the exported graph on ``split``, computed in its runtime.

        The method may write a temporary export next to the model.

        Raises:
            MeasurementError: The graph's outputs are not finite.
        """
        ...

    def samples(self, winner: Exported, reference: Exported | None) -> Mapping[str, object]:
        """Outputs of winner and reference design on test data, as JSON values for ``Task.report_sections``."""
        ...

    def ship(self, item: Exported, folder: Path, files: Mapping[str, str]) -> None:
        """Writes a model for users (such as a Hugging Face folder), and the additional text files ``files``."""
        ...


def task_named(name: str) -> Task:
    """The task of this name.

    Raises:
        UnknownName: The name is unknown.
    """
    found: Task = TASKS.load(name)
    return found

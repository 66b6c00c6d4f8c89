"""The protocol of trainers, and the table of trainers: ``local``, ``cuda``, ``ray_cluster`` and ``jobs``.

A trainer only runs jobs; the search decides which candidates are trained and for how long. Wherever a job runs, it
leaves the same files in its folder on this machine, so a run may continue with another trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

from chipwise.core.tables import Table
from chipwise.core.workers import Event
from chipwise.training.loop.worker import Job

TRAINERS = Table(
    "trainer",
    "chipwise.trainers",
    {
        "local": "chipwise.training.trainers.local:LocalTrainer",
        "cuda": "chipwise.training.trainers.cuda:CudaTrainer",
        "ray": "chipwise.training.trainers.ray_cluster:RayTrainer",
        "jobs": "chipwise.training.trainers.jobs:JobsTrainer",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Arguments of a trainer.

    ``on`` is the run file's ``train.on``, such as ``cuda:0,1`` or ``ray://head:10001``; ``folder`` is the run's folder.
    """

    on: str
    folder: Path
    workers: int = 2  # training runs at the same time
    device: str = "cpu"  # kind of device, cpu or cuda, for trainers that support both
    options: Mapping[str, object] = field(default_factory=dict)  # options that tests replace


class Trainer(Protocol):
    """Runs jobs in parallel. A trainer is created from a :class:`Setup`, and starts nothing before the first job.

    Attributes:
        accounts: Budgets whose use the trainer reports for each job: ``cpu`` (seconds), ``gpu`` (seconds), ``tokens``.
        whole: Whether jobs use this machine's CPU, so that a budget in CPU seconds counts everything a search does.
    """

    accounts: ClassVar[frozenset[str]]
    whole: ClassVar[bool]

    def __init__(self, setup: Setup) -> None:
        """Checks that the trainer's devices are available.

        Raises:
            Unsupported: A device is not available.
            MissingExtra: A package that the trainer needs is not installed.
        """
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Yields events until every job has ended; an event's ``job`` is its index in ``jobs``.

        When a job's ``result`` is yielded, the job's folder contains weights, result and the state from which a longer
        run can continue, as if the job had run on this machine. Finished jobs are not repeated.

        Raises:
            JobsMissing: Some jobs must first be run elsewhere. All available results are yielded before this error.
            InputError: A result that came back cannot be used. All other results are yielded before this error.
        """
        ...

    def close(self) -> None:
        """Stops all work immediately."""
        ...

    def __enter__(self) -> Self:
        """The trainer itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the trainer."""
        ...


class BaseTrainer:
    """Optional base class for trainers: a context manager that calls :meth:`close`."""

    def __enter__(self) -> Self:
        """The trainer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the trainer."""
        self.close()

    def close(self) -> None:
        """Does nothing; this trainer has nothing to stop."""


def kind_of(on: str) -> str:
    """The trainer's key in the table: the part of ``on`` before the first colon.

    >>> kind_of("cuda:0,1"), kind_of("ray://head:10001"), kind_of("local")
    ('cuda', 'ray', 'local')
    """
    return on.partition(":")[0]


def open_trainer(setup: Setup) -> Trainer:
    """Opens the trainer that ``setup.on`` names.

    Raises:
        UnknownName: There is no trainer of this name.
    """
    made: Trainer = TRAINERS.load(kind_of(setup.on))(setup)
    return made

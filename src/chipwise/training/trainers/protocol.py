"""The Trainer protocol, and the table of trainers. One file each: ``local``, ``cuda``, ``ray_cluster``, ``jobs``.

A trainer does jobs and nothing else: which candidate is trained for how long is decided by the search. What a job
leaves in its folder on this machine is the same wherever it ran, so a run may continue with another trainer.
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

    ``on`` is the run file's ``train.on``, such as ``cuda:0,1`` or ``ray://head:10001``; ``folder`` the run's.
    """

    on: str
    folder: Path
    workers: int = 2  # trainings side by side
    device: str = "cpu"  # what trains: cpu or cuda; of trainers that have both
    options: Mapping[str, object] = field(default_factory=dict)  # what tests replace


class Trainer(Protocol):
    """Does jobs side by side. Made with a :class:`Setup`; nothing is started before the first job.

    Attributes:
        accounts: The budgets whose use it can state of each job: ``cpu`` (seconds), ``gpu`` (seconds), ``tokens``.
        whole: Whether its CPU seconds are this machine's own, so that a budget in them counts all that a search does.
    """

    accounts: ClassVar[frozenset[str]]
    whole: ClassVar[bool]

    def __init__(self, setup: Setup) -> None:
        """Checks that its devices are available.

        Raises:
            Unsupported: There is no such device here.
            MissingExtra: A package that it needs is not installed.
        """
        ...

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Events until every job has ended; an event's ``job`` is the index in ``jobs``.

        When the ``result`` of a job is given, the job's folder holds its weights, its result and the state that a
        longer training continues from, as if it had run here. What had been finished before is not done again.

        Raises:
            JobsMissing: Jobs must be run elsewhere first. All results that are there were given before.
            InputError: A result that came back cannot be used. All others were given before.
        """
        ...

    def close(self) -> None:
        """Stops its work at once."""
        ...

    def __enter__(self) -> Self:
        """The trainer itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        ...


class BaseTrainer:
    """A context manager that closes; trainers may extend it."""

    def __enter__(self) -> Self:
        """The trainer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Does nothing: there is nothing to end."""


def kind_of(on: str) -> str:
    """The table's row for ``on``, by the part before a colon.

    >>> kind_of("cuda:0,1"), kind_of("ray://head:10001"), kind_of("local")
    ('cuda', 'ray', 'local')
    """
    return on.partition(":")[0]


def open_trainer(setup: Setup) -> Trainer:
    """The trainer that ``setup.on`` names.

    Raises:
        UnknownName: There is none of this name.
    """
    made: Trainer = TRAINERS.load(kind_of(setup.on))(setup)
    return made

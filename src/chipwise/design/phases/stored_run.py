"""Base class of searches with a folder and a study, whether they train designs or rank them by a law."""

from __future__ import annotations

from dataclasses import replace

from chipwise.core.record import Record
from chipwise.design.phases.going_on import take_up
from chipwise.design.phases.kit_return import kit_notes
from chipwise.design.phases.widening import Added, with_values
from chipwise.design.report import output
from chipwise.design.report.record import RunRecord, save
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.ledger import Ledger
from chipwise.design.run.progress import Observer, Status
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.design.targets.target import Target
from chipwise.model.space.search_space import SearchSpace


class StoredRun:
    """A run with its folder and study. An interrupted run continues where it stopped.

    Args:
        spec: The run.
        folder: The run's folder, open.
        observer: Called on every change.
        status: The status that the observer sees first.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, observer: Observer, status: Status) -> None:
        self.spec, self.folder, self._observer, self.status = spec, folder, observer, status
        self.space = SearchSpace(spec.space)
        self.study = Study(
            folder.where,
            name=folder.study_name,
            directions=[goal.direction for goal in spec.goals],
            identity=folder.identity,
            choices=choice_labels(self.space),
        )
        if folder.storage is not None:
            folder.check_trials_belong_to_run(len(self.study.trials()))
        self.trials = Trials(self.study, spec, self.space)
        if "widened" in self.study.memory:
            self.widen(Record(self.study.memory).get("widened", dict[str, list[int]]))
        take_up(self.study, self.trials, spec, folder.before)
        if folder.before is not None:
            folder.write_spec()
        self.ledger = Ledger(Record(self.study.memory).get("spent", dict[str, float], {}), file=folder.spent)

    def widen(self, added: Added) -> None:
        """Adds values to the run's space; see :mod:`chipwise.design.phases.widening`."""
        self.spec = replace(self.spec, space=with_values(self.spec.space, added))
        self.space = SearchSpace(self.spec.space)
        self.study.offer(choice_labels(self.space))
        self.trials = Trials(self.study, self.spec, self.space)

    def kit_notes(self, target: Target | None) -> dict[int, dict[str, object]]:
        """Maps trials to notes on those kit results that are not recorded yet.

        Messages about kit results, such as why some are ignored, are stored in the study.
        """
        told: list[str] = []
        notes = kit_notes(self.trials, self.spec, self.folder, target, on_note=told.append)
        if told != self.study.memory.get("kit_notes", []):
            self.study.remember(kit_notes=told)
        return notes

    def write(self, found: RunRecord) -> None:
        """Writes the record of a finished run, with its report, table and card."""
        save(found, self.folder.record)
        output.write(found, self.folder.path)
        self.status.done = True

"""The study: every trial of a search, kept by Optuna so that nothing told is ever lost.

The default store is a journal file: each change is one appended, synced line, so a kill loses at most the line that was
being written. Opening a study cuts such a torn last line off; a line that is broken elsewhere is an error that says
where. What chipwise knows of a trial beyond Optuna's own fields lives in its user attributes, as plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chipwise.core.errors import MissingExtra, StudyError
from chipwise.core.files import storage, write_atomic

_STATES = {"RUNNING": "running", "COMPLETE": "complete", "FAIL": "failed", "PRUNED": "pruned", "WAITING": "running"}


@dataclass(frozen=True)
class Trial:
    """A trial as it stands: its number, state and everything noted about it."""

    number: int
    state: str  # running, complete, failed, pruned
    notes: Mapping[str, Any] = field(default_factory=dict)
    values: tuple[float, ...] = ()


class Study:
    """Trials of one run.

    Args:
        path: The journal file; it is created when missing.
        name: Name of the study inside the store.
        directions: ``minimize`` or ``maximize``, one for each objective.
        identity: Digest of what the trials mean; a study of another identity is refused.
        choices: Every gene's name and the labels of its values.

    Raises:
        StudyError: The journal is corrupt or belongs to another spec.
        MissingExtra: Optuna is not installed.
    """

    def __init__(
        self, path: Path, *, name: str, directions: list[str], identity: str, choices: Mapping[str, tuple[str, ...]]
    ) -> None:
        try:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
        except ImportError:
            raise MissingExtra("optuna", "search") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self.path = optuna, path
        self._choices = {name: optuna.distributions.CategoricalDistribution(labels) for name, labels in choices.items()}
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            repair(path)
            Path(f"{path}.lock").unlink(missing_ok=True)  # of a killed process: the run's folder is locked by us
            backend = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))
            try:
                self._study = optuna.create_study(
                    storage=JournalStorage(backend), study_name=name, directions=directions, load_if_exists=True
                )
                known = self._study.user_attrs.get("identity")
            except (ValueError, KeyError, AssertionError) as error:
                raise StudyError(f"{path}: the study cannot be read ({error}); {_REMEDY}") from None
            if known is None:
                self._study.set_user_attr("identity", identity)
            elif known != identity:
                raise StudyError(
                    f"{path}: this study is of another spec; choose another folder with --out, "
                    "or start anew with --restart"
                )
            self._claim_waiting()

    def _claim_waiting(self) -> None:
        """Takes up trials that were announced but not begun when a process died; their notes say what they are."""
        waiting = self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.WAITING,))
        for _ in waiting:
            self._study.ask()

    def start(self, params: Mapping[str, str], notes: Mapping[str, Any]) -> int:
        """A new running trial with its choices (as labels, for people and dashboards) and notes; returns its number."""
        with storage(self.path):
            self._study.enqueue_trial(dict(params), user_attrs=dict(notes))
            return int(self._study.ask({name: self._choices[name] for name in params}).number)

    def note(self, number: int, **notes: Any) -> None:
        """Adds to what is known of a trial; JSON-able values only."""
        with storage(self.path):
            trial = self._handle(number)
            for key, value in notes.items():
                trial.set_user_attr(key, value)

    def finish(self, number: int, values: tuple[float, ...]) -> None:
        """Ends a trial with its objectives' values."""
        with storage(self.path):
            self._study.tell(number, list(values))

    def fail(self, number: int, reason: str) -> None:
        """Ends a trial that could not be finished, with its reason."""
        self.note(number, reason=reason)
        with storage(self.path):
            self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)

    def remember(self, **notes: Any) -> None:
        """Adds to what is known of the study as a whole."""
        with storage(self.path):
            for key, value in notes.items():
                self._study.set_user_attr(key, value)

    @property
    def memory(self) -> dict[str, Any]:
        """What :meth:`remember` kept."""
        return dict(self._study.user_attrs)

    def trials(self) -> list[Trial]:
        """All trials in order of number."""
        return [
            Trial(
                number=trial.number,
                state=_STATES[trial.state.name],
                notes=dict(trial.user_attrs),
                values=tuple(trial.values or ()),
            )
            for trial in self._study.get_trials(deepcopy=False)
        ]

    def _handle(self, number: int) -> Any:
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._optuna.trial.Trial(self._study, frozen._trial_id)


_REMEDY = "restore the file from a copy, or start anew with --restart (the old folder is kept beside it)"


def repair(path: Path) -> None:
    """Cuts a torn last line off the journal; keeps a copy of what is cut.

    Raises:
        StudyError: A line before the last is broken.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:end].splitlines(), start=1):
        try:
            json.loads(line)
        except ValueError:
            raise StudyError(f"{path}: line {number} is broken; {_REMEDY}") from None
    if end < len(data):
        path.with_suffix(path.suffix + ".torn").write_bytes(data[end:])
        write_atomic(path, data[:end])

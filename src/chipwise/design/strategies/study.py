"""The study: every trial of a search, stored with Optuna so that no result is lost.

Data for which Optuna has no field is stored as plain JSON in a trial's user attributes. A trial starts with one record
of its choices and notes, and ends with one record of its values. If the process is killed in between, the trial's state
remains running; no record is ever incomplete.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from chipwise.core.files import resumable
from chipwise.core.files import storage as disk
from chipwise.design.strategies.storage import REMEDY, is_url, open_storage, with_retries, without_password
from chipwise.errors import StudyError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

T = TypeVar("T")
_AFTER = "after:"  # prefix of a trial's number, for notes added after the trial ended, which Optuna does not allow
_STATES = {"RUNNING": "running", "COMPLETE": "complete", "FAIL": "failed", "PRUNED": "pruned", "WAITING": "running"}


@dataclass(frozen=True)
class Trial:
    """One trial: its number, state, notes and results."""

    number: int
    state: str  # running, complete, failed or pruned
    notes: Mapping[str, object] = field(default_factory=dict)
    values: tuple[float, ...] = ()


class Study:
    """Trials of one search.

    Args:
        where: The journal file, a database's URL, or None for memory; created if missing.
        name: Name of the study inside the storage.
        directions: ``minimize`` or ``maximize`` for each objective.
        identity: Digest of everything that determines the meaning of trials; a stored study with another identity is
            refused.
        choices: Maps each gene's name to the labels of its values, or to their number.

    Raises:
        StudyError: The journal is corrupt, or the study belongs to another spec.
        StorageError: The disk or the database refuses access.
        MissingExtra: Optuna is not installed.
    """

    def __init__(
        self,
        where: Path | str | None,
        *,
        name: str,
        directions: list[str],
        identity: str,
        choices: Mapping[str, tuple[str, ...] | int],
    ) -> None:
        self.where = where
        self._storage = open_storage(where)
        import optuna

        self._optuna = optuna
        self.offer(choices)
        try:
            self._study = self._do(
                lambda: optuna.create_study(
                    storage=self._storage, study_name=name, directions=directions, load_if_exists=True
                )
            )
            known = self._do(lambda: self._study.user_attrs).get("identity")
        except (ValueError, KeyError, AssertionError):
            raise StudyError(
                f"{self.shown}: the study cannot be read: its records contradict each other; {REMEDY}"
            ) from None
        if known is None:
            self.remember(identity=identity)
        elif known != identity:
            raise StudyError(
                f"{self.shown}: this study belongs to another spec; choose another folder with --out, "
                "or start a new run with --restart"
            )
        if not is_url(where):
            self._claim_waiting()

    def offer(self, choices: Mapping[str, tuple[str, ...] | int]) -> None:
        """Sets the choices of later trials: maps each gene's name to the labels of its values, or to their number."""
        self._choices = {
            name: self._optuna.distributions.IntDistribution(0, labels - 1)
            if isinstance(labels, int)
            else self._optuna.distributions.CategoricalDistribution(labels)
            for name, labels in choices.items()
        }

    @property
    def shown(self) -> str:
        """Location of the study, without a password."""
        return without_password(self.where or "memory")

    def _do(self, action: Callable[[], T]) -> T:
        """Runs ``action`` on the storage; converts its errors to errors that name a remedy."""
        if is_url(self.where):
            return with_retries(action, self.where)
        with resumable(), disk(str(self.where)):
            return action()

    def _claim_waiting(self) -> None:
        """Starts the trials that are still waiting in a study written by chipwise's first release.

        The choices of these trials are in the study's notes.
        """
        for _ in self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.WAITING,)):
            self._do(self._study.ask)

    def start(self, params: Mapping[str, object], notes: Mapping[str, object]) -> int:
        """Adds a running trial with its choices (labels for dashboards) and notes; returns its number."""
        return self._add("RUNNING", params, notes, None)

    def add(self, params: Mapping[str, object], notes: Mapping[str, object], values: Iterable[float]) -> int:
        """Adds a finished trial; returns its number."""
        return self._add("COMPLETE", params, notes, [float(value) for value in values])

    def _add(
        self, state: str, params: Mapping[str, object], notes: Mapping[str, object], values: list[float] | None
    ) -> int:
        now = datetime.datetime.now()
        trial = self._optuna.trial.FrozenTrial(
            number=-1,
            trial_id=-1,
            state=self._optuna.trial.TrialState[state],
            value=None,
            values=values,
            datetime_start=now,
            datetime_complete=None if values is None else now,
            params=dict(params),
            distributions={name: self._choices[name] for name in params},
            user_attrs=dict(notes),
            system_attrs={},
            intermediate_values={},
        )
        trial._validate()
        identity = self._do(lambda: self._storage.create_new_trial(self._study._study_id, template_trial=trial))
        return int(self._do(lambda: self._storage.get_trial_number_from_id(identity)))

    def note(self, number: int, **notes: object) -> None:
        """Adds notes to a trial, which may have ended; values must be JSON values."""
        identity = self._identity(number)
        if self._do(lambda: self._storage.get_trial(identity)).state.is_finished():
            self.remember(**{f"{_AFTER}{number}": self._noted_after().get(number, {}) | notes})
            return
        for key, value in notes.items():
            self._do(lambda key=key, value=value: self._storage.set_trial_user_attr(identity, key, value))  # type: ignore[misc]

    def finish(self, number: int, values: tuple[float, ...]) -> bool:
        """Ends a trial with its objectives' values; False if it has already failed, or ended with other values."""
        return self._end(number, "COMPLETE", [float(value) for value in values])

    def fail(self, number: int, reason: str, **notes: object) -> bool:
        """Ends a trial as failed, with the reason; False if it has already ended."""
        if self.trial(number).state != "running":
            return False
        self.note(number, reason=reason, **notes)
        return self._end(number, "FAIL", None)

    def _end(self, number: int, state: str, values: list[float] | None) -> bool:
        wanted = self._optuna.trial.TrialState[state]
        identity = self._identity(number)
        try:
            self._do(lambda: self._storage.set_trial_state_values(identity, state=wanted, values=values))
        except (self._optuna.exceptions.UpdateFinishedTrialError, RuntimeError):
            found = self.trial(number)  # it may have been stored before the connection was lost
            return found.state == _STATES[state] and (values is None or list(found.values) == values)
        return True

    def remember(self, **notes: object) -> None:
        """Adds notes to the whole study."""
        for key, value in notes.items():
            self._do(lambda key=key, value=value: self._study.set_user_attr(key, value))  # type: ignore[misc]

    def forget(self, *names: str) -> None:
        """Removes notes from the whole study."""
        known = self.memory
        self.remember(**{name: None for name in names if name in known})

    @property
    def memory(self) -> dict[str, object]:
        """The notes of the whole study, without those that are None; see :meth:`remember`."""
        held = self._do(lambda: self._study.user_attrs)
        return {key: value for key, value in held.items() if value is not None and not key.startswith(_AFTER)}

    def _noted_after(self) -> dict[int, dict[str, object]]:
        """Maps trial numbers to the notes that were added after the trials had ended."""
        found = self._do(lambda: self._storage.get_study_user_attrs(self._study._study_id))
        return {int(key.removeprefix(_AFTER)): dict(found[key]) for key in found if key.startswith(_AFTER)}

    def trials(self) -> list[Trial]:
        """All trials, in order of trial numbers."""
        after = self._noted_after()
        return [
            _trial(item, after.get(item.number)) for item in self._do(lambda: self._study.get_trials(deepcopy=False))
        ]

    def trial(self, number: int) -> Trial:
        """One trial."""
        identity = self._identity(number)
        item = self._do(lambda: self._storage.get_trial(identity))
        return _trial(item, self._noted_after().get(number) if item.state.is_finished() else None)

    def _identity(self, number: int) -> int:
        """The id that Optuna uses for a trial."""
        return int(
            self._do(lambda: self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number))
        )


def _trial(item: FrozenTrial, after: Mapping[str, object] | None = None) -> Trial:
    return Trial(
        number=item.number,
        state=_STATES[item.state.name],
        notes={**item.user_attrs, **(after or {})},
        values=tuple(item.values or ()),
    )

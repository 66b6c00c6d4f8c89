"""The folder of one run: its files, its lock, and the rules for resuming.

::

    runs/clinic/
    ├── spec.json          the specification and its identity
    ├── study.journal      every trial
    ├── profile.json       this machine, as calibrated for the run
    ├── spent.json         CPU seconds by phase
    ├── power.json         joules and CPU seconds of the whole machine, if an energy counter is readable
    ├── corpus/            tokenisers and encoded text
    ├── trainings/<arch>/  checkpoints and weights; trials that differ only in weight format share them
    ├── jobs/              training jobs to run elsewhere, with train: {on: jobs}
    ├── trials/<number>/   exported graphs
    ├── winner/            the Hugging Face folder and model.onnx
    └── report.html  card.md  trials.csv  record.json
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import IO

from chipwise.core.digest import plain
from chipwise.core.files import read_json, write_json
from chipwise.core.files import storage as disk
from chipwise.design.run.changes import check_changes
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec, any_spec
from chipwise.design.strategies.storage import is_url, without_password
from chipwise.errors import Infeasible, SpecError, StudyError
from chipwise.model.arch.arch import ArchSpec

PROMISES = "chipwise.json"  # in the winner's folder: design, workload, limits and predictions


def holds_run(path: Path) -> bool:
    """Whether a folder contains a run; its trials may be stored elsewhere."""
    if (path / "study.journal").exists() or (path / "about.json").exists():
        return True
    return "storage" in (written_spec(path) or ())


def written_spec(path: Path) -> dict[str, object] | None:
    """Contents of a folder's spec.json; None if there is no such file."""
    known = path / "spec.json"
    held = read_json(known) if known.exists() else None
    return held if isinstance(held, dict) else None


def won_by(model: str | Path) -> RunSpec | None:
    """The search whose winner is in a folder; None if the folder is not inside a search's folder."""
    home = Path(os.path.realpath(model)).parent
    if not holds_run(home) or (held := written_spec(home)) is None:
        return None
    found = any_spec(held.get("spec"), file=str(home / "spec.json"))
    return found if isinstance(found, RunSpec) else None


class RunFolder:
    """One run's folder, locked while it is open. Use as a context manager.

    Args:
        path: The folder; created if missing.
        spec: The specification of the run.
        resume: Continue the run in the folder.
        restart: Rename the existing folder, adding the time to its name, and start a new run.
        storage: Where to store trials if not in the folder: a database's URL, or the path of another journal. A resumed
            run continues with its previous storage.

    Raises:
        StudyError: The folder is in use, or holds a run that cannot be compared with ``spec``, or holds a run although
            neither ``resume`` nor ``restart`` is given.
        SpecError: The resumed run differs in a field that may not change; the message names it.
        StorageError: The folder cannot be written.
    """

    def __init__(
        self,
        path: Path,
        spec: RunSpec | StartSpec,
        *,
        resume: bool = False,
        restart: bool = False,
        storage: str | None = None,
    ) -> None:
        self.path, self.spec, self.identity = path, spec, spec.identity
        self.study = path / "study.journal"  # the trials, unless they are stored elsewhere
        self.profile = path / "profile.json"
        self.calibrating = path / "profile-partial.jsonl"  # results of an unfinished calibration
        self.spent = path / "spent.json"  # updated during a phase
        self.corpus = path / "corpus"
        self.winner = path / "winner"
        self.record = path / "record.json"
        self.before: RunSpec | StartSpec | None = None  # the previous spec, if the resumed run changes it
        self._lock: IO[str] | None = None
        self.resumed = resume and self._begun
        with disk(path):
            path.mkdir(parents=True, exist_ok=True)
            self._acquire()
            if restart and self._begun:  # safe, because the lock shows that no search uses the folder
                self.close()
                path.rename(path.with_name(f"{path.name}-{time.strftime('%Y%m%d-%H%M%S')}"))
                path.mkdir()
                self._acquire()
        try:
            self._check(resume)
            self.storage = self._where(storage, resume=resume)
            if self.before is None:
                self.write_spec()
        except BaseException:
            self.close()
            raise

    def write_spec(self) -> None:
        """Writes spec.json: the specification, and the identity that the run started with.

        Raises:
            StorageError: The disk is full.
        """
        kept = {} if self.storage is None else {"storage": without_password(self.storage)}
        write_json(self.path / "spec.json", {"identity": self.identity, "spec": plain(self.spec), **kept})

    def _acquire(self) -> None:
        stream = (self.path / "run.lock").open("a")
        try:
            import fcntl
        except ImportError:  # this system has no advisory locks
            self._lock = stream
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            raise StudyError(
                f"{self.path}: a search is running in this folder; wait for it, or search into another with --out"
            ) from None
        self._lock = stream

    @property
    def _begun(self) -> bool:
        """Whether the folder contains a run; its trials may be stored elsewhere."""
        return holds_run(self.path)

    def _stored(self) -> str | None:
        found = (written_spec(self.path) or {}).get("storage")
        return None if found is None else str(found)

    def _where(self, storage: str | None, *, resume: bool) -> str | None:
        """Where trials are stored: ``storage``, or else the previous storage; None for the folder's own journal."""
        known = self._stored() if resume else None
        if storage is None and known is not None and ":***@" in known:
            raise StudyError(f"{self.path}: this run's trials are in {known}; give --storage again, with the password")
        if storage is not None and known is None and resume and self.study.exists():
            raise StudyError(f"{self.path}: this run's trials are in {self.study}; resume without --storage")
        return storage if storage is not None else known

    @property
    def where(self) -> str | Path:
        """Location of the study."""
        if self.storage is None:
            return self.study
        return self.storage if is_url(self.storage) else Path(self.storage)

    @property
    def study_name(self) -> str:
        """Name of the study: the run's name in its own journal, a unique name in shared storage."""
        return self.spec.name if self.storage is None else f"{self.spec.name}-{self.identity}"

    def check_trials_belong_to_run(self, trials: int) -> None:
        """Refuses storage that already contains trials of this search although the folder is new.

        Raises:
            StudyError: The trials belong to another folder.
        """
        if trials and not self.resumed:
            raise StudyError(
                f"{without_password(self.storage or self.study)}: this storage already holds {trials} trials of "
                "this search; resume that search in its own folder with --resume, or give this search another name"
            )

    def _check(self, resume: bool) -> None:
        if not self._begun:
            return
        if not resume:
            raise StudyError(
                f"{self.path}: this folder already holds a run; go on with --resume, put it aside with --restart, "
                "or choose another with --out"
            )
        held = written_spec(self.path)
        if held is None or held.get("identity") == self.spec.identity == self._identity_of(held):
            return
        self._take_up(held)

    def _identity_of(self, held: dict[str, object]) -> object:
        """Identity of the specification in the folder, computed anew; it changes if resuming has changed fields."""
        try:
            return any_spec(held.get("spec"), file=str(self.path / "spec.json")).identity
        except SpecError:  # written by a version with other fields
            return held.get("identity")

    def _take_up(self, held: dict[str, object]) -> None:
        """Opens a run if only fields that may change have changed, now or when the run was resumed earlier.

        Raises:
            SpecError: Another field has changed; the message names it.
            StudyError: The stored specification cannot be read, so it cannot be compared.
        """
        elsewhere = "search into another folder with --out, or put the stored run aside with --restart"
        try:
            was = any_spec(held.get("spec"), file=str(self.path / "spec.json"))
        except SpecError:
            raise StudyError(
                f"{self.path}: this folder holds a run that this version cannot read; {elsewhere}"
            ) from None
        if type(was) is not type(self.spec):
            kind = "starts from a model" if isinstance(was, StartSpec) else "searches a space"
            raise SpecError(f"the run in {self.path} {kind}, but the new run does not; {elsewhere}", field="start_from")
        self.identity = str(held.get("identity"))
        if was.identity == self.spec.identity:
            return
        check_changes(was, self.spec, folder=self.path)
        self.before = was

    def withdraw(self) -> None:
        """Removes the files of a run that could not start, so that the folder contains no run.

        Resumed runs, and runs whose trials are stored elsewhere, are kept.
        """
        if self.resumed or self.storage is not None:
            return
        for path in (self.path / "spec.json", self.study, self.record, self.spent):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Releases the folder lock."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Releases the folder. If no design meets the limits, first moves aside a winner found under earlier limits."""
        if isinstance(error, Infeasible) and self.winner.exists():
            self.winner.rename(self.path / f"winner-{time.strftime('%Y%m%d-%H%M%S')}")
        self.close()

    def training(self, arch: ArchSpec) -> Path:
        """Folder of an architecture's training runs; all trials with this architecture share it."""
        return self.path / "trainings" / arch.as_trained().digest

    def trial(self, number: int) -> Path:
        """The folder of one trial."""
        return self.path / "trials" / str(number)

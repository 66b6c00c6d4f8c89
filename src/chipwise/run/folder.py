"""The folder of one run: its files, its lock, and the rules for going on in it.

::

    runs/clinic/
    ├── spec.json          what was asked, with its identity
    ├── study.journal      every trial
    ├── profile.json       this machine, as calibrated for the run
    ├── corpus/            tokenisers and encoded text
    ├── trainings/<arch>/  checkpoints and weights, shared by trials that differ in weight format alone
    ├── trials/<number>/   exported graphs
    ├── winner/            the Hugging Face folder and model.onnx
    └── report.html  card.md  trials.csv  record.json
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import IO

from chipwise.core.digest import plain
from chipwise.core.errors import StudyError
from chipwise.core.files import read_json, storage, write_json
from chipwise.run.spec import RunSpec
from chipwise.spec import ArchSpec

PROMISES = "chipwise.json"  # in the winner's folder: design, workload, limits and what was promised


class RunFolder:
    """One run's folder, locked while it is open. Use as a context manager.

    Args:
        path: The folder; it is created when missing.
        spec: What the run is asked to do.
        resume: Go on with what the folder holds.
        restart: Put what the folder holds aside, under a name with the time, and begin anew.

    Raises:
        StudyError: The folder is in use, holds a run and neither resume nor restart is given, or is of another spec.
        StorageError: The folder cannot be written.
    """

    def __init__(self, path: Path, spec: RunSpec, *, resume: bool = False, restart: bool = False) -> None:
        self.path, self.spec = path, spec
        self._lock: IO[str] | None = None
        if restart and self.study.exists():
            aside = path.with_name(f"{path.name}-{time.strftime('%Y%m%d-%H%M%S')}")
            with storage(path):
                path.rename(aside)
        with storage(path):
            path.mkdir(parents=True, exist_ok=True)
            self._acquire()
        try:
            self._check(resume)
            write_json(path / "spec.json", {"identity": spec.identity, "spec": plain(spec)})
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        stream = (self.path / "run.lock").open("a")
        try:
            import fcntl
        except ImportError:  # no advisory locks on this system
            self._lock = stream
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.close()
            raise StudyError(
                f"{self.path}: another search is running in this folder; wait for it, or use --out"
            ) from None
        self._lock = stream

    def _check(self, resume: bool) -> None:
        known = self.path / "spec.json"
        if known.exists():
            held = read_json(known)
            identity = held.get("identity") if isinstance(held, dict) else None
            if identity != self.spec.identity and self.study.exists():
                raise StudyError(
                    f"{self.path}: this folder holds a run of another spec; choose another with --out, "
                    "or put it aside with --restart"
                )
        if self.study.exists() and not resume:
            raise StudyError(
                f"{self.path}: this folder already holds a run; go on with --resume, put it aside with --restart, "
                "or choose another with --out"
            )

    def close(self) -> None:
        """Gives the folder free."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def study(self) -> Path:
        """The journal of trials."""
        return self.path / "study.journal"

    @property
    def profile(self) -> Path:
        """This machine as calibrated."""
        return self.path / "profile.json"

    @property
    def corpus(self) -> Path:
        """Tokenisers and encoded text."""
        return self.path / "corpus"

    @property
    def winner(self) -> Path:
        """The Hugging Face folder of the winner."""
        return self.path / "winner"

    @property
    def record(self) -> Path:
        """What the report is drawn from."""
        return self.path / "record.json"

    def training(self, arch: ArchSpec) -> Path:
        """Where an architecture's trainings are kept, whatever trial asked for them."""
        return self.path / "trainings" / arch.digest

    def trial(self, number: int) -> Path:
        """The folder of one trial."""
        return self.path / "trials" / str(number)

"""Stores studies in a journal file by default, in a database for teams, or in memory for tests.

The journal is Optuna's, extended to survive full disks and killed processes. A line is appended completely or not at
all, and the next writer removes an incomplete last line. The journal's lock is a kernel lock, which is released when
its process ends. If the connection to a database is lost, operations are retried for a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from chipwise.core.files import storage as disk
from chipwise.errors import DiskFull, InputError, MissingExtra, StorageError, StudyError, line_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileBackend

T = TypeVar("T")
PATIENCE_S = 60.0  # how long operations on an unreachable database are retried
FIRST_PATIENCE_S = 5.0  # how long the first connection is retried; shorter, because the address may be wrong
_OPERATIONS = range(11)  # codes of journal records
_UNREACHABLE = {"OperationalError", "InterfaceError", "StorageInternalError"}
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")  # messages of SQLite and PostgreSQL
_REFUSED = "disk I/O error"  # SQLite's message for an exceeded quota; waiting does not help
REMEDY = "restore the file from a copy, or start a new run with --restart (the old folder is kept next to it)"


def is_url(where: str | Path | None) -> bool:
    """Whether ``where`` names a database rather than a journal file."""
    return isinstance(where, str) and "://" in where


def without_password(where: object) -> str:
    """``where`` without passwords.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", str(where))


def open_storage(where: str | Path | None) -> BaseStorage:
    """Optuna's storage for ``where``: a database's URL, a journal's path, or None for memory.

    Raises:
        StudyError: The journal is corrupt.
        StorageError: The disk or the database denies access.
        InputError: The kind of database is unknown.
        MissingExtra: Optuna, or the database's driver, is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "search") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if where is None:
        return optuna.storages.InMemoryStorage()
    if is_url(where):
        return _database(str(where))
    path = Path(where)
    if path.exists() and not path.is_file():
        raise StudyError(f"{path}: this is not a file; give the path of a journal")
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        repair(path)
    try:
        return optuna.storages.JournalStorage(_journal(path))
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise StudyError(f"{path}: the study cannot be read: its records contradict each other; {REMEDY}") from None


def _journal(path: Path) -> JournalFileBackend:
    from optuna.storages.journal import JournalFileBackend

    class Journal(JournalFileBackend):  # type: ignore[misc]
        """A journal that appends lines completely or not at all."""

        def append_logs(self, logs: list[dict[str, object]]) -> None:
            """Appends records and syncs the file; if the disk fills up, removes the partly written line."""
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            with _locked(path) as stream:
                _cut(path, stream)
                size = stream.seek(0, os.SEEK_END)
                try:
                    left = memoryview(text.encode())
                    while left:  # if the disk is nearly full, a write may be accepted only in part
                        left = left[stream.write(left) :]
                    os.fsync(stream.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(stream.fileno(), size)
                    raise

    return Journal(str(path))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The journal, opened for appending under a kernel lock, which is released when the process ends."""
    with path.open("ab+", buffering=0) as stream:
        try:
            import fcntl
        except ImportError:  # this system has no advisory locks
            yield stream
            return
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


def _cut(path: Path, stream: IO[bytes]) -> None:
    """Removes an incomplete last line, after saving a copy of the file."""
    size = stream.seek(0, os.SEEK_END)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    data = stream.read()
    end = data.rfind(b"\n") + 1
    with contextlib.suppress(OSError):  # a full disk must not prevent saving the rest
        path.with_suffix(path.suffix + ".torn").write_bytes(data[end:])
    os.ftruncate(stream.fileno(), end)


def repair(path: Path) -> None:
    """Removes an incomplete last line from the journal.

    Raises:
        StudyError: A line before the last one is broken.
    """
    with _locked(path) as stream:
        _cut(path, stream)
        stream.seek(0)
        for number, line in enumerate(stream.read().splitlines(), start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise StudyError(f"{path}: line {number} is damaged; {REMEDY}") from None
            if not isinstance(record, dict) or record.get("op_code") not in _OPERATIONS:
                raise StudyError(f"{path}: line {number} is not a record of a study; {REMEDY}")


def _database(url: str) -> BaseStorage:
    scheme = url.split("://", 1)[0]
    kind = scheme.split("+")[0]
    if kind not in ("postgresql", "postgres", "sqlite"):
        raise InputError(
            f"{without_password(url)}: {kind!r} is not supported; give postgresql://user@host/database, "
            "sqlite:///file.db, or the path of a journal file"
        )
    folder = Path(url.split("://", 1)[1].removeprefix("/").partition("?")[0]).parent
    if kind == "sqlite" and not folder.is_dir():
        raise InputError(f"{url}: there is no folder {folder}; create it or give another path")
    if scheme in ("postgresql", "postgres"):  # psycopg 3, from the extra
        url = "postgresql+psycopg://" + url.split("://", 1)[1]
    from optuna.storages import RDBStorage

    try:
        options: dict[str, object] = {"connect_args": {"timeout": PATIENCE_S}}
        if kind != "sqlite":
            options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": max(2, round(FIRST_PATIENCE_S))}}
        # If two searches create the tables at once, one gets an error; when it retries, the tables exist.
        return with_retries(
            lambda: RDBStorage(url, engine_kwargs=options),
            url,
            patience_s=min(PATIENCE_S, FIRST_PATIENCE_S),
            also=("IntegrityError", "ProgrammingError"),
        )
    except ImportError as error:
        raise MissingExtra(getattr(error, "name", None) or "the database's driver", "postgresql") from None
    except Exception as error:
        if _unreachable(error, {"ArgumentError", "NoSuchModuleError"}):
            raise InputError(f"{without_password(url)}: not the URL of a database ({error})") from None
        if not _unreachable(error, {"DatabaseError"}):
            raise
        raise StorageError(f"{without_password(url)}: cannot be used as a database: {line_of(error)}") from None


def with_retries(
    action: Callable[[], T],
    where: object,
    *,
    patience_s: float | None = None,
    also: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Runs ``action``; retries while the database is unreachable or an error named in ``also`` occurs.

    Raises:
        StorageError: The database is unreachable for ``patience_s`` seconds (default: PATIENCE_S), or its disk is full.
    """
    begun, pause = clock(), 0.05
    wait_s, first = PATIENCE_S if patience_s is None else patience_s, True
    while True:
        try:
            return action()
        except Exception as error:
            if not _unreachable(error, _UNREACHABLE | set(also)):
                raise
            if _said(error, _FULL):
                raise DiskFull(without_password(where), resumable=True) from None
            if _said(error, (_REFUSED,)):
                raise StorageError(
                    f"{without_password(where)}: the disk cannot be written; check whether it is full or damaged, "
                    "or a quota is exceeded, then go on with --resume (finished trials are kept)"
                ) from None
            if first and _unreachable(error, set(also)):
                begun = clock()  # the attempt itself may have taken longer than the patience
            if clock() - begun > wait_s:
                raise StorageError(
                    f"{without_password(where)}: the database could not be reached for {wait_s:.0f} s "
                    f"({line_of(error)}); check the address and the server, then go on with --resume (finished trials "
                    "are kept)"
                ) from None
        sleep(pause)
        pause, first = min(2 * pause, 2.0), False


def _said(error: BaseException | None, signs: tuple[str, ...]) -> bool:
    """Whether the message of the error, or of its cause, contains one of ``signs``."""
    return error is not None and (any(sign in str(error) for sign in signs) or _said(error.__cause__, signs))


def _unreachable(error: BaseException | None, names: set[str]) -> bool:
    """Whether the class of the error, or of its cause, has one of these names."""
    if error is None:
        return False
    return bool(names & {kind.__name__ for kind in type(error).__mro__}) or _unreachable(error.__cause__, names)

"""Storage of a study: a journal file by default, a database for a team, memory for a test.

The journal is Optuna's, made to survive full disks and kills: a line is appended whole or not at all, a torn last line
is cut off by the next writer, and the lock is the kernel's, so it ends with its holder. When the connection to a
database is cut, operations are retried for a while.
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
from chipwise.errors import DiskFull, InputError, MissingExtra, StorageError, StudyError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.storages.journal import JournalFileBackend

T = TypeVar("T")
PATIENCE_S = 60.0  # how long operations on a database that went away are retried
FIRST_PATIENCE_S = 5.0  # and the first connection: most likely the address is wrong
_OPERATIONS = range(11)  # codes of the journal's records
_UNREACHABLE = {"OperationalError", "InterfaceError", "StorageInternalError"}
_FULL = ("disk is full", "No space left on device", "Disk quota exceeded")  # as SQLite and PostgreSQL say it
_REFUSED = "disk I/O error"  # as SQLite says it where a quota is exceeded: waiting does not help
REMEDY = "restore the file from a copy, or start anew with --restart (the old folder is kept beside it)"


def is_url(where: str | Path | None) -> bool:
    """Whether ``where`` names a database rather than a journal file."""
    return isinstance(where, str) and "://" in where


def without_password(where: object) -> str:
    """``where`` without secrets.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", str(where))


def open_storage(where: str | Path | None) -> BaseStorage:
    """Optuna's storage at ``where``: a URL, a journal's path, or None for memory.

    Raises:
        StudyError: The journal is corrupt.
        StorageError: The disk or the database refuses.
        InputError: The URL is of no database that is known.
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
        raise StudyError(f"{path}: the study cannot be read, its records do not belong together; {REMEDY}") from None


def _journal(path: Path) -> JournalFileBackend:
    from optuna.storages.journal import JournalFileBackend

    class Journal(JournalFileBackend):  # type: ignore[misc]
        """Appends whole lines or none."""

        def append_logs(self, logs: list[dict[str, object]]) -> None:
            """Appends and syncs; a half-written line on a full disk is removed."""
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            with _locked(path) as stream:
                _cut(path, stream)
                size = stream.seek(0, os.SEEK_END)
                try:
                    left = memoryview(text.encode())
                    while left:  # a nearly full disk may take only a part of a write
                        left = left[stream.write(left) :]
                    os.fsync(stream.fileno())
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(stream.fileno(), size)
                    raise

    return Journal(str(path))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The journal, open for appending and locked by the kernel, which frees it when the holder dies."""
    with path.open("ab+", buffering=0) as stream:
        try:
            import fcntl
        except ImportError:  # no advisory locks on this system
            yield stream
            return
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream


def _cut(path: Path, stream: IO[bytes]) -> None:
    """Cuts off an incomplete last line, after keeping a copy of the file."""
    size = stream.seek(0, os.SEEK_END)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    data = stream.read()
    end = data.rfind(b"\n") + 1
    with contextlib.suppress(OSError):  # a full disk must not prevent the rest from being saved
        path.with_suffix(path.suffix + ".torn").write_bytes(data[end:])
    os.ftruncate(stream.fileno(), end)


def repair(path: Path) -> None:
    """Cuts a torn last line off the journal.

    Raises:
        StudyError: A line before the last is broken.
    """
    with _locked(path) as stream:
        _cut(path, stream)
        stream.seek(0)
        for number, line in enumerate(stream.read().splitlines(), start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise StudyError(f"{path}: line {number} is broken; {REMEDY}") from None
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
    if scheme in ("postgresql", "postgres"):  # psycopg 3, which is the extra's
        url = "postgresql+psycopg://" + url.split("://", 1)[1]
    from optuna.storages import RDBStorage

    try:
        options: dict[str, object] = {"connect_args": {"timeout": PATIENCE_S}}
        if kind != "sqlite":
            options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": max(2, round(FIRST_PATIENCE_S))}}
        # Of two searches that create the tables at once one is refused; they exist when it tries again.
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
        first = str(error).strip().splitlines()[0]
        raise StorageError(f"{without_password(url)}: cannot be used as a database: {first}") from None


def with_retries(
    action: Callable[[], T],
    where: object,
    *,
    patience_s: float | None = None,
    also: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Runs ``action``, and retries while the database cannot be reached or raises an error of ``also``.

    Raises:
        StorageError: It cannot be reached for ``patience_s`` seconds (PATIENCE_S unless given), or its disk is full.
    """
    begun, pause = clock(), 0.05
    wait_s = PATIENCE_S if patience_s is None else patience_s
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
                    f"{without_password(where)}: the disk refused to be written; look whether it is full, a quota is "
                    "exceeded or it is damaged, then go on with --resume (finished trials are kept)"
                ) from None
            if clock() - begun > wait_s:
                first = str(error).strip().splitlines()[0]
                raise StorageError(
                    f"{without_password(where)}: the database could not be reached for {wait_s:.0f} s ({first}); "
                    "check the address and the server, then go on with --resume (finished trials are kept)"
                ) from None
        sleep(pause)
        pause = min(2 * pause, 2.0)


def _said(error: BaseException | None, signs: tuple[str, ...]) -> bool:
    """Whether the error or its cause says one of ``signs``."""
    return error is not None and (any(sign in str(error) for sign in signs) or _said(error.__cause__, signs))


def _unreachable(error: BaseException | None, names: set[str]) -> bool:
    """Whether the error or its cause is of a class with one of these names."""
    if error is None:
        return False
    return bool(names & {kind.__name__ for kind in type(error).__mro__}) or _unreachable(error.__cause__, names)

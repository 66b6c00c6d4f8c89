"""Where a study is kept: a journal file by default, a database for a team, memory for a test.

The journal is Optuna's, made to survive what disks and kills do: a line is appended whole or taken back, a torn line
that a kill left is cut off by whoever writes next, and the lock is the kernel's, so that it dies with its holder. A
database is asked again for a while when its connection is cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from chipwise.core.errors import InputError, MissingExtra, StorageError, StudyError
from chipwise.core.files import storage as disk

T = TypeVar("T")
PATIENCE_S = 60.0  # how long a database that cannot be reached is asked again
_UNREACHABLE = {"OperationalError", "InterfaceError", "StorageInternalError"}
REMEDY = "restore the file from a copy, or start anew with --restart (the old folder is kept beside it)"


def is_url(where: str | Path | None) -> bool:
    """Whether ``where`` names a database rather than a journal file."""
    return isinstance(where, str) and "://" in where


def without_password(where: object) -> str:
    """``where`` as it may be shown.

    >>> without_password("postgresql://me:secret@host/db")
    'postgresql://me:***@host/db'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", str(where))


def open_storage(where: str | Path | None) -> Any:
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
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        repair(path)
    return optuna.storages.JournalStorage(_journal(path))


def _journal(path: Path) -> Any:
    from optuna.storages.journal import JournalFileBackend

    class Journal(JournalFileBackend):  # type: ignore[misc]
        """Appends whole lines or none."""

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            """Appends and syncs; what a full disk took only half of is taken back."""
            text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            with _locked(path) as stream:
                _cut(path, stream)
                size = stream.seek(0, os.SEEK_END)
                try:
                    left = memoryview(text.encode())
                    while left:  # of a disk that is nearly full a write may take a part
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
    """Cuts a torn last line off; keeps a copy of what is cut."""
    size = stream.seek(0, os.SEEK_END)
    if not size:
        return
    stream.seek(size - 1)
    if stream.read(1) == b"\n":
        return
    stream.seek(0)
    data = stream.read()
    end = data.rfind(b"\n") + 1
    with contextlib.suppress(OSError):  # a full disk must not keep the rest from being saved
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
                json.loads(line)
            except ValueError:
                raise StudyError(f"{path}: line {number} is broken; {REMEDY}") from None


def _database(url: str) -> Any:
    scheme = url.split("://", 1)[0]
    kind = scheme.split("+")[0]
    if kind not in ("postgresql", "postgres", "sqlite", "mysql"):
        raise InputError(
            f"{without_password(url)}: {kind!r} is no storage; give postgresql://user@host/database, "
            "sqlite:///file.db, or the path of a journal file"
        )
    if scheme in ("postgresql", "postgres"):  # psycopg 3, which is the extra's
        url = "postgresql+psycopg://" + url.split("://", 1)[1]
    from optuna.storages import RDBStorage

    try:
        options = {"connect_args": {"timeout": PATIENCE_S}} if kind == "sqlite" else {"pool_pre_ping": True}
        # Of two that make the tables at once, one is refused, and finds them made when it asks again.
        return patient(lambda: RDBStorage(url, engine_kwargs=options), url, also=("IntegrityError", "ProgrammingError"))
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "the database's driver", "postgresql") from None
    except Exception as error:
        if not _unreachable(error, {"DatabaseError"}):
            raise
        first = str(error).strip().splitlines()[0]
        raise StorageError(f"{without_password(url)}: cannot be used as a database: {first}") from None


def patient(
    action: Callable[[], T],
    where: object,
    *,
    patience_s: float | None = None,
    also: tuple[str, ...] = (),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What ``action`` returns, tried again while the database cannot be reached, or refuses with an error of ``also``.

    Raises:
        StorageError: It cannot be reached for ``patience_s`` seconds (PATIENCE_S unless given).
    """
    begun, pause = clock(), 0.05
    wait_s = PATIENCE_S if patience_s is None else patience_s
    while True:
        try:
            return action()
        except Exception as error:
            if not _unreachable(error, _UNREACHABLE | set(also)):
                raise
            if clock() - begun > wait_s:
                first = str(error).strip().splitlines()[0]
                raise StorageError(
                    f"{without_password(where)}: the database could not be reached for {wait_s:.0f} s ({first}); "
                    "mend that and go on with --resume (what was told is kept)"
                ) from None
        sleep(pause)
        pause = min(2 * pause, 2.0)


def _unreachable(error: BaseException | None, names: set[str]) -> bool:
    """Whether the database, not the question, is at fault."""
    if error is None:
        return False
    return bool(names & {kind.__name__ for kind in type(error).__mro__}) or _unreachable(error.__cause__, names)

"""Stores a run's intermediate results in a file, so that a stopped run can continue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.files import read_mapping, write_json
from chipwise.errors import SpecError, StudyError


@contextlib.contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Context manager: an unreadable file of ``folder`` raises an error that says how to start again.

    Raises:
        StudyError: A file cannot be read.
    """
    try:
        yield
    except SpecError as error:
        if error.file is None or folder not in Path(error.file).parents:
            raise
        raise StudyError(f"{error}; the stored state is damaged; remove the folder {folder} and start again") from None


def earlier(path: Path, identity: str, *, depends_on: str, resume: bool) -> dict[str, object]:
    """The results that an earlier run stored in the file ``path``; empty if there is no such file.

    Args:
        path: The file, in the run's folder.
        identity: Digest of everything that the results depend on; it must equal the digest in the file.
        depends_on: What the results depend on, in words for the error message.
        resume: Whether to use the results of an earlier run.

    Raises:
        StudyError: The folder contains another run, or it contains this run but ``resume`` is false.
    """
    if not path.exists():
        return {}
    folder = path.parent
    with undamaged(folder):
        held = read_mapping(path)
    if held.get("identity") != identity:
        raise StudyError(f"{folder}: has a run with another {depends_on}; remove the folder, or choose another --out")
    if not resume:
        raise StudyError(f"{folder}: contains this run, unfinished; continue it with --resume, or remove the folder")
    return held


class Kept:
    """The stored results of one run, by key."""

    def __init__(self, folder: Path, identity: str, *, resume: bool) -> None:
        self.folder, self._path = folder, folder / "answers.json"
        found = earlier(self._path, identity, depends_on="model or text", resume=resume)
        self._held: dict[str, object] = found or {"identity": identity}
        write_json(self._path, self._held)

    def once(self, key: str, make: Callable[[], object]) -> object:
        """The stored result for ``key`` as JSON data; if there is none, calls ``make`` and stores its result."""
        if key not in self._held:
            self._held[key] = plain(make())
            write_json(self._path, self._held)
        return self._held[key]

    def series(self, key: str, count: int, rest: Callable[[int], Iterator[list[float]]]) -> list[list[float]]:
        """Returns ``count`` lists of numbers. ``rest(number_stored)`` yields the missing ones; each is then stored."""
        held = self._held.get(key, [])
        found = [self._numbers(key, each) for each in (held if isinstance(held, list) else [held])]
        for each in rest(len(found)) if len(found) < count else ():
            found.append(each)
            self._held[key] = plain(found)
            write_json(self._path, self._held)
        return found

    def numbers(self, key: str, make: Callable[[], Sequence[float]]) -> list[float]:
        """As :meth:`once`, for a result that is a list of numbers."""
        return self._numbers(key, self.once(key, make))

    def _numbers(self, key: str, found: object) -> list[float]:
        if not isinstance(found, list) or not all(isinstance(each, int | float) for each in found):
            raise StudyError(f"{self._path}: result {key!r} is damaged; remove {self.folder} and start again")
        return [float(each) for each in found]

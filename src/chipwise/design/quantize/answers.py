"""Answers of a run that took time, kept in a file beside it, so that a stopped run can go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.files import read_mapping, write_json
from chipwise.errors import SpecError, StudyError


@contextlib.contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Names the remedy where a file in the state ``folder`` cannot be read.

    Raises:
        StudyError: One cannot.
    """
    try:
        yield
    except SpecError as error:
        if error.file is None or folder not in Path(error.file).parents:
            raise
        raise StudyError(f"{error}; the state is damaged: remove the folder {folder} and start again") from None


def earlier(path: Path, identity: str, *, depends_on: str, resume: bool) -> dict[str, object]:
    """The answers of an earlier run in the file ``path``; empty if there is no such file.

    Args:
        path: The file, in the run's folder.
        identity: Digest of everything that the answers depend on, which the file states as well.
        depends_on: What that is, in words.
        resume: Whether to use the answers of an earlier run.

    Raises:
        StudyError: The folder holds another run, or this one and ``resume`` is not given.
    """
    if not path.exists():
        return {}
    folder = path.parent
    with undamaged(folder):
        held = read_mapping(path)
    if held.get("identity") != identity:
        raise StudyError(f"{folder}: holds a run of another {depends_on}; remove it or name another --out")
    if not resume:
        raise StudyError(f"{folder}: holds this run, unfinished; go on with --resume, or remove the folder")
    return held


class Kept:
    """The answers of one run."""

    def __init__(self, folder: Path, identity: str, *, resume: bool) -> None:
        self.folder, self._path = folder, folder / "answers.json"
        found = earlier(self._path, identity, depends_on="model or text", resume=resume)
        self._held: dict[str, object] = found or {"identity": identity}
        write_json(self._path, self._held)

    def once(self, key: str, make: Callable[[], object]) -> object:
        """The answer to ``key`` as JSON data, made once."""
        if key not in self._held:
            self._held[key] = plain(make())
            write_json(self._path, self._held)
        return self._held[key]

    def series(self, key: str, count: int, rest: Callable[[int], Iterator[list[float]]]) -> list[list[float]]:
        """``count`` lists of numbers, each kept as soon as it is made; ``rest`` receives the number already kept."""
        held = self._held.get(key, [])
        found = [self._numbers(key, each) for each in (held if isinstance(held, list) else [held])]
        for each in rest(len(found)) if len(found) < count else ():
            found.append(each)
            self._held[key] = plain(found)
            write_json(self._path, self._held)
        return found

    def numbers(self, key: str, make: Callable[[], Sequence[float]]) -> list[float]:
        """The same for a list of numbers."""
        return self._numbers(key, self.once(key, make))

    def _numbers(self, key: str, found: object) -> list[float]:
        if not isinstance(found, list) or not all(isinstance(each, int | float) for each in found):
            raise StudyError(f"{self._path}: {key!r} is damaged; remove the folder {self.folder}")
        return [float(each) for each in found]

"""The exception tree. Every error that a user can meet is one of these.

ChipwiseError
├── InputError            what the user gave is wrong (exit code 2)
│   ├── SpecError         a field of a file: carries file and field path
│   │   └── DataError     text data that is missing, unreadable or too short
│   ├── UnitError         a quantity that cannot be read
│   ├── UnknownName       a name that is not known; suggests the nearest
│   │   └── AmbiguousName a name that fits several things; lists them
│   ├── Infeasible        no candidate can meet the constraints
│   │   └── OutOfReach    no candidate is predicted to meet the limits; says by how much the closest one exceeds them
│   ├── DoesNotFit        a model that needs more memory than the device has
│   └── StudyError        a run folder that cannot be used (locked, corrupt, or made with another run file)
├── Unsupported           a number or feature that this device, runtime or block does not have
├── MissingExtra          an optional dependency that is not installed
├── StorageError          the disk refused to store a file
│   ├── OutputError       a path that cannot be written: no such folder, no permission, a device (also an InputError)
│   └── DiskFull          no space is left
├── WorkerError           a child process died, hung or sent an unreadable answer
├── Unreachable           a machine that cannot be reached, or lacks what measuring needs
├── JobsMissing           results of jobs that run elsewhere are missing (exit code 3)
├── TrainingDiverged      loss or weights are no longer finite
└── MeasurementError      a measurement that could not be made or cannot be trusted
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

MOST_CHARACTERS = 2000
MOST_SUGGESTED, MOST_LISTED, MOST_CANDIDATES = 5, 20, 12  # names in one message
LEAST_TYPED = 3  # characters; shorter input is contained in too many names
_LONG = re.compile(r"\S{200,}")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def printable(text: str) -> str:
    r"""``text`` with control characters replaced by ``?``; tabs and newlines stay.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return _OBEYED.sub("?", text)


class ChipwiseError(Exception):
    """Base of all errors. Commands end with ``exit_code``; messages contain no control characters."""

    exit_code = 1

    def __str__(self) -> str:
        """The message, with long values cut."""
        text = _LONG.sub(lambda found: found[0][:60] + "…", printable(super().__str__()))
        return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


class InputError(ChipwiseError):
    """The user's input is wrong; the message says how to correct it."""

    exit_code = 2


class SpecError(InputError):
    """A field of a file or an argument is wrong.

    Args:
        message: What is wrong and what to do.
        file: The file, as the user named it.
        field: Path of the field, such as ``space.layer.heads``.
    """

    def __init__(self, message: str, *, file: str | None = None, field: str | None = None) -> None:
        self.message, self.file, self.field = message, file, field
        where = ": ".join(part for part in (file, field) if part)
        super().__init__(f"{where}: {message}" if where else message)

    def inside(self, *, file: str | None = None, field: str | None = None) -> SpecError:
        """A copy with ``field`` in front of this error's field path, and with ``file`` if this error names no file."""
        path = ".".join(part for part in (field, self.field) if part) or None
        return type(self)(self.message, file=self.file or file, field=path)


class UnitError(InputError):
    """A quantity such as ``3 ms`` that cannot be read."""


class UnknownName(InputError):
    """A name that is not known.

    Args:
        kind: The kind of thing that the name should denote, such as ``device``.
        name: The unknown name.
        known: All known names.
        listed_by: The command that lists the known names, if there are many.
        near: The most similar known names, best first; by default, names with a similar spelling.
        said: Text for the message instead of suggestions.
    """

    def __init__(
        self,
        kind: str,
        name: object,
        known: Iterable[str],
        *,
        listed_by: str = "",
        near: Sequence[str] = (),
        said: str = "",
    ) -> None:
        self.near = tuple(near)
        meant = f"did you mean {listed(near)}?" if near else said or nearest(str(name), known, listed_by=listed_by)
        super().__init__(f"unknown {kind} {short(name)}; {meant}")


class AmbiguousName(UnknownName):
    """An ambiguous name; the message lists the candidates."""

    def __init__(self, kind: str, name: object, candidates: Sequence[str]) -> None:
        super().__init__(kind, name, candidates)
        self.candidates = tuple(candidates)
        self.args = (f"{kind} {short(name)} may mean {listed(candidates)}; name one of them",)


class Infeasible(InputError):
    """No candidate of a space can meet the constraints."""


class OutOfReach(Infeasible):
    """No candidate is predicted to meet the limits; the closest one exceeds them by the fraction ``beyond``."""

    def __init__(self, message: str, *, beyond: float) -> None:
        self.beyond = beyond
        super().__init__(message)


class DoesNotFit(InputError):
    """A model that needs more memory than the devices have; the message says by how much, and what would fit."""


class DataError(SpecError):
    """Text data that are missing, unreadable, or too short to train on."""


class Unsupported(ChipwiseError):
    """A number or feature that this device, runtime or block does not have."""


class MissingExtra(ChipwiseError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, *, of: str = "chipwise") -> None:
        super().__init__(f"{package} is not installed; it comes with: pip install '{of}[{extra}]'")


class StudyError(InputError):
    """A run folder that cannot be used: it is locked, corrupt, or was made with another run file."""


class StorageError(ChipwiseError):
    """The disk refused to store a file."""


class OutputError(InputError, StorageError):
    """A path that cannot be written: its folder is missing, it is a device, or permission is denied."""


class DiskFull(StorageError):
    """No space is left for ``path``.

    Args:
        path: The file that was to be written.
        resumable: Whether the command can continue with ``--resume``.
    """

    def __init__(self, path: object, *, resumable: bool = False) -> None:
        self.path = path
        remedy = "go on with --resume (finished work is kept)" if resumable else "try again"
        super().__init__(f"{path}: the disk is full; free some space and {remedy}")


class WorkerError(ChipwiseError):
    """A child process died, hung, or sent an unreadable answer; ``ended_with`` is its exit code if it has ended."""

    ended_with: int | None = None


class Unreachable(ChipwiseError):
    """A machine cannot be reached, or lacks a tool for measuring. Every model would fail there, so the command ends."""


class JobsMissing(ChipwiseError):
    """Results of jobs that run elsewhere are missing; the search continues once they are available."""

    exit_code = 3


class TrainingDiverged(ChipwiseError):
    """Loss or weights are no longer finite."""


class MeasurementError(ChipwiseError):
    """A measurement that could not be made or cannot be trusted."""


def short(value: object, *, quoted: bool = True, limit: int = 60) -> str:
    """``value`` as text for a message, cut to ``limit`` characters.

    >>> short("ab"), short("x" * 100, limit=10)
    ("'ab'", "'xxxxxxxx…")
    """
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to print thousands of digits
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value) if quoted else str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def line_of(told: object, place: int = 0) -> str:
    """One line (by default the first) of another library's error message, cut to 300 characters.

    Returns the error's ``repr`` if the message is empty.

    >>> line_of(ValueError("bad shape\\nat node 3")), line_of(ValueError("a\\nb"), -1), line_of(ValueError())
    ('bad shape', 'b', 'ValueError()')
    """
    lines = str(told).strip().splitlines() or [repr(told)]
    return lines[place][:300]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun in the singular or plural.

    >>> counted(1, "layer"), counted(3, "layer"), counted(2, "entry", "entries")
    ('1 layer', '3 layers', '2 entries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """Lists names for a message, at most ``MOST_CANDIDATES`` of them.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ("'a'", "'a', 'b' or 'c'")
    """
    shown, more = [repr(each) for each in names[:MOST_CANDIDATES]], len(names) - MOST_CANDIDATES
    if more > 0:
        return f"{', '.join(shown)} or one of {more} more"
    *others, last = shown
    return f"{', '.join(others)} or {last}" if others else last


def nearest(name: str, known: Iterable[str], *, listed_by: str = "") -> str:
    """The end of an error message, with suggestions: known names that contain ``name``, else similar names.

    Case is ignored. If there are many known names and none is similar, it states their number instead.

    >>> nearest("h100", ["h100-sxm", "H100-pcie", "a100"])
    "did you mean 'h100-sxm' or 'H100-pcie'?"
    """
    names, typed = sorted(known), name.strip().lower()
    holding = sorted((each for each in names if typed and typed in each.lower()), key=len)  # shortest names first
    spelled: dict[str, str] = {}
    for each in names:
        spelled.setdefault(each.lower(), each)
    close = [spelled[each] for each in difflib.get_close_matches(typed[:100], spelled, n=3, cutoff=0.5)]
    if found := list(dict.fromkeys(holding[:MOST_SUGGESTED] if len(typed) >= LEAST_TYPED and holding else close)):
        beyond = len(holding) - len(found) if holding and found[0] == holding[0] else 0
        return f"did you mean {listed(found)}?" + (f" (and {beyond} more)" if beyond > 0 else "")
    if len(names) > MOST_LISTED:
        return f"none of {len(names)} known names is similar" + (f"; list them with: {listed_by}" if listed_by else "")
    return f"known: {', '.join(names)}" if names else "none are known"


__all__ = [
    "AmbiguousName",
    "ChipwiseError",
    "DataError",
    "DiskFull",
    "DoesNotFit",
    "Infeasible",
    "InputError",
    "JobsMissing",
    "MeasurementError",
    "MissingExtra",
    "OutOfReach",
    "OutputError",
    "SpecError",
    "StorageError",
    "StudyError",
    "TrainingDiverged",
    "UnitError",
    "UnknownName",
    "Unreachable",
    "Unsupported",
    "WorkerError",
]

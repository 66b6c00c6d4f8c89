"""Taught profiles: files that correct predictions for one machine, learnt from a table of measured models.

A taught profile corrects the predictions from a data sheet, its ``base`` (the arithmetic is in
``predict/served/taught_pass.py``). Profiles are stored by machine name in the user's data folder, one file per version.
A version is never overwritten: teaching again adds the next version.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.fields import later
from chipwise.core.files import build, read_json, storage, write_json
from chipwise.core.places import data_folder
from chipwise.errors import InputError, SpecError, UnknownName

SCHEMA = "chipwise.taught/1"
FOLDER = "taught"
_VERSION = re.compile(r"v(\d{4,})\.json")
Row = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtError:
    """Prediction errors as shares of measured values.

    Each row was predicted by a fit that excludes all rows of its model. If there are fewer than three models, the fit
    excludes the row itself and possibly some other rows.
    """

    rows: int
    mean: float
    median: float
    inside: float | None = None  # share of rows inside the 90 % interval
    plain_mean: float | None = None  # in older profiles: mean error of a ridge regression on the raw columns
    sheet_mean: float | None = None  # mean error of the data sheet alone, on the same rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """A measured ONNX file: the amount of each kind of work in a pass, the runtime, the number format, and the seconds.

    ``part`` is the part of the chip on which the file ran, such as ``npu`` or ``4-cores``; empty for the whole chip.
    """

    model: str
    amounts: Mapping[str, float]
    runtime: str
    precision: str
    seconds: float
    part: str = later("npu")

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise SpecError(f"must be above 0, not {self.seconds:g}", field="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtTail:
    """Predicted distribution of ln(P99 / P50) for a new run on the machine: its mean and standard deviation.

    The prediction is based on ``runs`` measured runs.
    """

    runtime: str
    time: str  # ttft or tpot
    mean: float
    deviation: float
    runs: int

    def __post_init__(self) -> None:
        for name in ("mean", "deviation", "runs"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SpecError(f"must be at least 0, not {getattr(self, name)}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """The posterior of one fit: a normal distribution over the logarithms of correction factors.

    ``mean`` and ``covariance`` have this order: the logarithm of a common factor, the logarithm of one factor for each
    of ``terms``, the same for each of ``labels``, and one coefficient of the smooth part for each of ``points``.

    Attributes:
        name: Name of the machine.
        version: Number of the version, from 1.
        created: ISO date and time.
        base: Name of the data sheet whose predictions are corrected.
        rows: Number of measured rows used.
        terms: Names of the groups of operators whose times add up to a pass.
        units: Factor of each group before learning, ``units_g`` in ``predict/served/taught_pass.py``.
        labels: Names of the factors for a whole pass, which depend on phase, runtime, weight format or variant.
        label_sd: Standard deviation of the logarithm of a factor whose label has no rows.
        points: Features of the passes at which the smooth part of the correction is defined.
        amplitude: Standard deviation of the smooth part far from all points, in logarithms.
        reach: Length scale of the smooth part, in standard deviations of the features.
        mean: Posterior mean of the logarithms.
        covariance: Posterior covariance of the logarithms.
        noise: Standard deviation of the noise of one measured row, in logarithms.
        widen: Factor on the standard deviations, chosen so that intervals contain nine of ten left-out rows.
        variant: The variant (backend, threads, …) that predictions are for.
        machine: Name of the machine in the table; rows of other machines are rejected.
        check: Cross-validated errors; None if there are too few rows.
        source: Where the rows came from.
        records: The rows themselves, so that later versions can use them too.
        tails: Ratios of P99 to P50, one for each runtime and kind of time; empty if no samples were measured.
        files: Measured ONNX files, which correct only predictions for ONNX files on the same part of the chip.
    """

    name: str
    version: int
    created: str
    base: str
    rows: int
    terms: tuple[str, ...] = ()
    units: Row = ()
    labels: tuple[str, ...] = ()
    label_sd: float = 0.0
    points: tuple[Row, ...] = ()
    amplitude: float = 0.0
    reach: float = 1.0
    mean: Row = ()
    covariance: tuple[Row, ...] = ()
    noise: float = 0.0
    widen: float = 1.0
    variant: str = ""
    machine: str = ""
    check: TaughtError | None = None
    source: str = ""
    records: tuple[Mapping[str, object], ...] = ()
    files: tuple[FileResult, ...] = later(())
    tails: tuple[TaughtTail, ...] = later(())

    def __post_init__(self) -> None:
        for name, least in (("version", 1), ("rows", 0), ("label_sd", 0.0), ("amplitude", 0.0), ("noise", 0.0)):
            if not least <= getattr(self, name) < math.inf:
                raise SpecError(f"must be at least {least:g}, not {getattr(self, name)}", field=name)
        size = 1 + len(self.terms) + len(self.labels) + len(self.points)
        if not self.rows:
            return
        if len(self.units) != len(self.terms):
            raise SpecError("must have one value for each term", field="units")
        if len(self.mean) != size or len(self.covariance) != size or any(len(row) != size for row in self.covariance):
            raise SpecError(f"must have {size} logarithms", field="mean")
        numbers = (*self.mean, *self.units, self.noise, self.widen, self.amplitude, *map(sum, self.covariance))
        if not all(map(math.isfinite, numbers)) or min(self.noise, self.widen, self.reach) <= 0:
            raise SpecError("must be finite numbers, with standard deviations above 0", field="mean")

    def __hash__(self) -> int:
        """Hash of the name and the version."""
        return hash((self.name, self.version))

    @property
    def label(self) -> str:
        """Name and version, such as ``shop-box@2``."""
        return f"{self.name}@{self.version}"

    @property
    def provenance(self) -> str:
        """Where predictions with this profile come from, in words."""
        if not self.rows:
            taught = f"corrected for ONNX files only, by {len(self.files)} results" if self.files else "nothing taught"
            return f"predicted (data sheet of {self.base}, {taught})"
        return (
            f"predicted (taught from {self.rows} row{'s' if self.rows > 1 else ''}, on the data sheet of {self.base})"
        )

    def save(self) -> Path:
        """Writes the profile as a new file and returns its path.

        Raises:
            StorageError: The file cannot be written.
        """
        path = folder(self.name) / f"v{self.version:04d}.json"
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                raise InputError(f"{path}: this version already exists, and versions are never overwritten")
        write_json(path, {"schema": SCHEMA, **plain(self)})
        return path


def key(name: str) -> str:
    """The folder name for a machine: lower case, words joined by dashes.

    Raises:
        InputError: The name has no letters or digits.
    """
    found = re.sub(r"[^a-z0-9.+]+", "-", name.strip().lower()).strip("-.")[:80]
    if not found:
        raise InputError(f"{name!r:.60} cannot be a machine's name; use letters and digits, such as shop-box")
    return found


def folder(name: str) -> Path:
    """Folder of the versions of a machine's profile."""
    return data_folder() / FOLDER / key(name)


def names() -> list[str]:
    """Names of the machines that have a taught profile, sorted."""
    try:
        return sorted(path.name for path in (data_folder() / FOLDER).iterdir() if versions(path.name))
    except OSError:
        return []


def versions(name: str) -> list[int]:
    """Numbers of the versions of a machine's profile, oldest first."""
    try:
        found = [_VERSION.fullmatch(path.name) for path in folder(name).iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for match in found if match)


def revision(name: str) -> int:
    """When a machine's newest version was written, in nanoseconds; 0 if none exists. ``name`` may end in ``:PART``."""
    for wanted in dict.fromkeys((name.partition("@")[0], re.split("[@:]", name)[0])):
        if wanted.strip() and "/" not in wanted:
            with contextlib.suppress(OSError, ValueError, InputError):
                return folder(wanted).stat().st_mtime_ns
    return 0


def load(name: str) -> Teaching | None:
    """The newest profile of a machine, or version 2 for ``name@2``; None if it was never taught.

    Raises:
        UnknownName: The machine has a taught profile, but not this version.
        SpecError: The file is damaged.
    """
    wanted, _, number = name.partition("@")
    if "/" in wanted or ":" in number or not re.search(r"[A-Za-z0-9]", wanted):
        return None
    known = versions(wanted)
    if not known:
        return None
    if number and number not in map(str, known):
        raise UnknownName(f"version of {key(wanted)}", number, map(str, known))
    path = folder(wanted) / f"v{int(number) if number else known[-1]:04d}.json"
    return _read(str(path), path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _read(path: str, changed: int) -> Teaching:
    data = read_json(path)
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise SpecError(f"this is not a taught profile of version {SCHEMA}; teach it again: chipwise teach", file=path)
    return build(Teaching, {name: value for name, value in data.items() if name != "schema"}, file=path)

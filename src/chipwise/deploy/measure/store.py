"""The user's data folder: all measurements in one SQLite file, and the profiles of this machine.

SQLite runs in write-ahead mode: many processes may write at once, and a killed process leaves no partial entry. A
measurement is stored with all samples as compressed JSON, next to columns for searching. Its id is the hash of its
content, so importing it twice changes nothing.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from chipwise.core.digest import plain
from chipwise.core.files import build, check_output, parse_json, read_bytes, read_text, storage, write_atomic
from chipwise.core.labels import require_label
from chipwise.core.places import data_folder
from chipwise.deploy.measure.kit_checks import LONGEST_S, SHORTEST_S, require_date
from chipwise.deploy.measure.measurement import Measurement
from chipwise.errors import InputError, SpecError, StorageError, UnknownName
from chipwise.hardware.detect import detect
from chipwise.hardware.device import MachineProfile, Thermal
from chipwise.model.arch import io as spec_io
from chipwise.model.arch.design import Design

SCHEMA = "chipwise.stored_measurement/1"
WAIT_S = 30.0  # waiting time for other writers
IMPORTED = "imported: "  # prefix of ``source`` for measurements imported from a file
_TABLE = """
CREATE TABLE IF NOT EXISTS measurements (
    id TEXT PRIMARY KEY,
    added TEXT NOT NULL,
    device TEXT NOT NULL,
    runtime TEXT NOT NULL,
    runtime_version TEXT NOT NULL,
    threads INTEGER NOT NULL,
    design TEXT NOT NULL,
    name TEXT NOT NULL,
    clean INTEGER NOT NULL,
    source TEXT NOT NULL,
    data BLOB NOT NULL
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored measurement, with its ``design`` if it is fully known."""

    id: str
    added: str  # ISO date and time
    source: str  # origin: "measure", "search clinic", "imported: measure", …
    measurement: Measurement
    design: Design | None

    @property
    def imported(self) -> bool:
        """Whether it was imported from a file, so that the machine's name is unverified."""
        return self.source.startswith(IMPORTED)

    def to_data(self) -> dict[str, object]:
        """The measurement as a line of an exported file."""
        design = None
        if self.design is not None:
            design = {"arch": spec_io.to_data(self.design.arch), "weights": self.design.weights}
        return {
            "schema": SCHEMA,
            "added": self.added,
            "source": self.source,
            "design": design,
            "measurement": self.measurement.to_data(),
        }

    @classmethod
    def from_data(cls, data: object, *, file: str | None = None) -> Stored:
        """Reads the output of :meth:`to_data`.

        Raises:
            SpecError: The data is not a stored measurement of this version.
        """
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise SpecError(f"not a stored measurement of this version ({SCHEMA})", file=file)
        measurement = Measurement.from_data(data.get("measurement"), file=file)
        known = data.get("design")
        design = None
        if known is not None:
            if not isinstance(known, Mapping) or "arch" not in known:
                raise SpecError(
                    "must be a mapping with the field `arch`, and optionally `weights`", file=file, field="design"
                )
            arch = spec_io.from_data(known["arch"], file=file)
            design = build(Design, {"arch": arch, "weights": known.get("weights", "fp32")}, field="design", file=file)
        return cls(
            id=measurement.digest,
            added=str(data.get("added", "")),
            source=str(data.get("source", "")),
            measurement=measurement,
            design=design,
        )


class MeasurementStore:
    """The store at ``path``; the user's own by default. The file is created by the first write."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else data_folder() / "measurements.sqlite"

    def add(self, measurement: Measurement, *, design: Design | None = None, source: str) -> str:
        """Stores ``measurement`` and returns its id. An existing measurement is not changed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        item = Stored(id=measurement.digest, added=now, source=source, measurement=measurement, design=design)
        self._insert([item])
        return item.id

    def _insert(self, items: Sequence[Stored]) -> int:
        rows = [
            (
                item.id,
                item.added,
                item.measurement.device,
                item.measurement.runtime,
                item.measurement.runtime_version,
                item.measurement.threads,
                item.measurement.design,
                item.measurement.name,
                int(item.measurement.clean),
                item.source,
                zlib.compress(json.dumps(item.to_data(), allow_nan=False).encode()),
            )
            for item in items
        ]
        with self._open() as database:
            before = database.total_changes
            database.executemany(f"INSERT OR IGNORE INTO measurements VALUES ({','.join('?' * 11)})", rows)
            return database.total_changes - before

    def entries(
        self, *, device: str | None = None, runtime: str | None = None, threads: int | None = None
    ) -> list[Stored]:
        """All measurements, oldest first; filtered by device, runtime and number of threads if given."""
        wanted = {"device": device, "runtime": runtime, "threads": threads}
        limits = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in limits) or "1"
        if not _exists(self.path):
            return []
        with self._open() as database:
            found = database.execute(
                f"SELECT id, data FROM measurements WHERE {where} ORDER BY added, rowid",
                list(limits.values()),
            ).fetchall()
        return [self._read(identity, blob) for identity, blob in found]

    def _read(self, identity: str, blob: bytes) -> Stored:
        place = f"{self.path}, measurement {identity[:8]}"
        try:
            text = zlib.decompress(blob).decode()
        except (zlib.error, UnicodeDecodeError) as error:
            raise StorageError(f"{place}: cannot be read: {error}") from None
        item = Stored.from_data(parse_json(text, name=place), file=place)
        return replace(item, id=identity)  # older versions hashed other field names

    def get(self, identity: str) -> Stored:
        """The measurement with the id ``identity``, which may be abbreviated.

        Raises:
            UnknownName: No id matches, or several do.
        """
        matching = [name for name in self._ids() if identity and name.startswith(identity)]
        if len(matching) != 1:
            raise UnknownName("measurement", identity, matching or self._ids())
        with self._open() as database:
            (blob,) = database.execute("SELECT data FROM measurements WHERE id = ?", matching).fetchone()
        return self._read(matching[0], blob)

    def _ids(self) -> list[str]:
        if not _exists(self.path):
            return []
        with self._open() as database:
            return [row[0] for row in database.execute("SELECT id FROM measurements ORDER BY added, rowid")]

    def delete(self, identities: Iterable[str]) -> int:
        """Deletes measurements; returns their number.

        Raises:
            UnknownName: One of the measurements does not exist; then none is deleted.
        """
        exact = [(self.get(identity).id,) for identity in identities]
        if not exact:
            return 0
        with self._open() as database:
            database.executemany("DELETE FROM measurements WHERE id = ?", exact)
        return len(set(exact))

    def export(self, path: str | Path, items: Sequence[Stored] | None = None) -> int:
        """Writes ``items`` (all by default) to a file of JSON lines; returns their number."""
        check_output(path)
        chosen = self.entries() if items is None else items
        lines = (json.dumps(plain(item.to_data()), allow_nan=False) for item in chosen)
        write_atomic(path, "".join(f"{line}\n" for line in lines))
        return len(chosen)

    def import_(self, path: str | Path) -> int:
        """Imports measurements from a file written by :meth:`export`; returns how many were new.

        They are marked as imported and are not used for this machine's profile.

        Raises:
            SpecError: The file is missing, or a line is not a valid measurement; then nothing is added.
        """
        name, items = str(path), []
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            if not line.strip():
                continue
            place = f"{name}, line {number}"
            item = Stored.from_data(parse_json(line, name=place), file=place)
            _require_labels(item, place)
            items.append(replace(item, source=f"{IMPORTED}{item.source.removeprefix(IMPORTED)}"))
        if not items:
            raise SpecError("holds no measurements", file=name)
        return self._insert(items)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are committed at the end of the block, or rolled back after an error."""
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        database = None
        try:
            database = sqlite3.connect(self.path, timeout=WAIT_S)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(_TABLE)
            with database:
                yield database
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.path}: the store of measurements cannot be used: {error}; if it is damaged, move it aside "
                "(a new one is created) and import what was exported from it"
            ) from None
        finally:
            if database is not None:
                database.close()


def _require_labels(item: Stored, place: str) -> None:
    """Raises SpecError if an imported measurement has unprintable names or impossible times."""
    found = item.measurement
    labels = {"device": found.device, "runtime": found.runtime, "name": found.name, "source": item.source}
    labels |= {"runtime_version": found.runtime_version, "design": found.design}
    try:
        for field, value in labels.items():
            require_label(value, field, empty=field != "device")
        if item.added:  # missing in older versions
            require_date(item.added, "added")
        for field in ("ttft_s", "tpot_s"):
            if any(not SHORTEST_S <= value <= LONGEST_S for value in getattr(found, field)):
                raise SpecError(f"must be times from {SHORTEST_S:g} to {LONGEST_S:g} s", field=field)
    except SpecError as error:
        raise error.inside(file=place) from None


def kept_as(runtime: str, kind: str) -> str:
    """Name of the profile for one kind of models: ``images``, ``ranking``, ``sounds``, or empty for text models."""
    return f"{runtime}-{kind}" if kind else runtime


def profile_path(runtime: str, threads: int) -> Path:
    """Path of this machine's profile. Machines that share a data folder have separate profiles.

    Raises:
        InputError: ``runtime`` is not a plain name, or ``threads`` is not positive.
    """
    if not re.fullmatch(r"[\w.+-]+", runtime) or runtime.startswith("."):
        raise InputError(f"runtime: {runtime!r} is not the name of a runtime")
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads: must be a whole number of at least 1, not {threads!r}")
    return data_folder() / "profiles" / _folder_name(detect().name) / f"{runtime}-{threads}.json"


def _folder_name(machine: str) -> str:
    return re.sub(r"[^\w.]+", "-", machine).strip("-.").lower()[:100] or "machine"


def saved_profile(runtime: str, threads: int) -> MachineProfile | None:
    """This machine's profile; None if it has not been calibrated for this runtime.

    Profiles of older versions, which lack the machine's name, are used if they match this machine.

    Raises:
        SpecError: The file is damaged.
        StorageError: The data folder cannot be read.
    """
    path = profile_path(runtime, threads)
    if _exists(path):
        return MachineProfile.load(path)
    older = data_folder() / "profiles" / path.name
    if not _exists(older):
        return None
    profile = MachineProfile.load(older)
    return profile if profile.machine.name == detect().name else None


def save_profile(profile: MachineProfile, *, runtime: str, threads: int) -> Path:
    """Writes this machine's profile and returns its path; the previous profile is kept under a number.

    ``onnxruntime-1.json`` is the newest profile, ``onnxruntime-1.v0001.json`` the oldest replaced one.
    """
    path = profile_path(runtime, threads)
    if _exists(path):
        known = earlier_profiles(runtime, threads)
        number = int(known[-1].stem.rpartition(".v")[2]) + 1 if known else 1
        write_atomic(path.with_name(f"{path.stem}.v{number:04d}.json"), read_bytes(path))
    profile.save(path)
    return path


def earlier_profiles(runtime: str, threads: int) -> list[Path]:
    """Paths of this machine's replaced profiles, oldest first."""
    path = profile_path(runtime, threads)
    return sorted(path.parent.glob(f"{glob.escape(path.stem)}.v[0-9][0-9][0-9][0-9]*.json"))


def save_thermal(thermal: Thermal, *, runtime: str, threads: int) -> bool:
    """Writes the thermal model to this machine's profile; returns False if there is no profile."""
    profile = saved_profile(runtime, threads)
    if profile is None:
        return False
    replace(profile, thermal=thermal).save(profile_path(runtime, threads))
    return True


def _exists(path: Path) -> bool:
    """Whether the file exists.

    Raises:
        StorageError: The folder of ``path`` cannot be read.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); set CHIPWISE_HOME to a folder that you may read"
        ) from None
    return True

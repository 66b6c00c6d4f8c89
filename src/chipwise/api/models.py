"""The cost models themselves: fitted, judged, calibrated, taught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.core.csvfile import write_rows
from chipwise.core.errors import InputError, MissingExtra, UnknownName
from chipwise.hardware.device import MachineProfile
from chipwise.predict.learn import Learned
from chipwise.predict.validation.score import LeaveOut, Score
from chipwise.profile.kept import kept_profile, profile_path

if TYPE_CHECKING:
    pass


FITS = ("gemm", "attention", "latent", "experts", "collective", "scan", "power")

"""Kinds of kernels that are fitted to aiconfigurator's tables; ``serving`` is fitted to its sample of served runs."""


def fit(
    *,
    kinds: Sequence[str] = (),
    tables: str | Path | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Fits what ships again, from the tables of the installed package aiconfigurator-core; returns reports.

    Args:
        kinds: Of ``FITS`` and ``serving``; all unless given.
        tables: The package's ``systems`` folder; found where it is installed unless given.
        out: A folder for the fitted arrays; chipwise's own data unless given.
        progress: Told each step.

    Raises:
        UnknownName: There is no such kind.
        MissingExtra: The package, or what fits, is not installed.
    """
    import importlib

    wanted = tuple(kinds) or (*FITS, "serving")
    for kind in wanted:
        if kind not in (*FITS, "serving"):
            raise UnknownName("kind of fit", kind, [*FITS, "serving"])
    root = Path(tables) if tables is not None else _installed_tables()
    reports = []
    for kind in wanted:
        if kind == "serving":
            from chipwise.serve import batching, fitting

            errors = fitting.fit(
                root / "silicon_sample.csv", Path(out) / "serving.json" if out else batching.DATA, progress=progress
            )
            reports.append(f"serving: {errors}")
            continue
        from chipwise.predict import kernels

        module = importlib.import_module(f"chipwise.predict.fitting.{kind}")
        folder = Path(out) if out is not None else Path(kernels.__file__).parents[1] / "data"
        reports.append(str(module.fit(root, folder, progress=progress)))
    return reports


def learn(*, runtime: str = "onnxruntime", threads: int = 1, count: int | None = None) -> tuple[Learned, Path]:
    """Updates this machine's own profile by what was measured on it; returns what was learned and the profile's file.

    Args:
        runtime: The profile's runtime.
        threads: The profile's threads.
        count: Learn from this many of the measurements, drawn at random.

    Raises:
        InputError: There is no profile, or too few measurements.
    """
    from chipwise.predict.learn import fit_from_measurements

    path = profile_path(runtime, threads)
    if not path.exists():
        raise InputError(f"this machine has no profile in {runtime} with {threads} threads; run: chipwise calibrate")
    learned = fit_from_measurements(MachineProfile.load(path), count=count)
    learned.profile.save(path)
    return learned, path


def _installed_tables() -> Path:
    from importlib.util import find_spec

    found = find_spec("aiconfigurator_core")
    if found is None or found.origin is None:
        raise MissingExtra("aiconfigurator-core", "fit")
    return Path(found.origin).parent / "systems"


PREDICTED = {"gemm": "latency_s", "attention": "latency_s", "serving": "tpot_s", "power": "power_w"}

"""What is predicted of each kind of measured row: the column of the predictions."""


def validate(kind: str, truth: str | Path, out: str | Path, *, leave_out: LeaveOut = "none") -> list[Score]:
    """Predicts measured rows and says how far off that is, over all and by subset.

    Args:
        kind: ``gemm``, ``attention``, ``serving`` or ``power``.
        truth: A folder that holds ``KIND.csv``, or the file.
        out: Where the predictions go: row_id, the prediction, low_s and high_s.
        leave_out: ``device`` or ``family`` to predict each row by a fit that had not seen its device or family.

    Raises:
        UnknownName: There is no such kind.
        SpecError: The file is missing or lacks a column.
    """
    from chipwise.predict.validation import kernels, power, score
    from chipwise.serve.validation import serving

    readers: dict[str, Callable[[Path, LeaveOut], list[score.Row]]]
    readers = {"gemm": kernels.gemm, "attention": kernels.attention, "serving": serving, "power": power.watts}
    if kind not in readers:
        raise UnknownName("kind of measurement", kind, readers)
    path = Path(truth)
    rows = readers[kind](path / f"{kind}.csv" if path.is_dir() else path, leave_out)
    answered = [row for row in rows if row.predicted is not None]
    write_rows(
        Path(out),
        [
            {"row_id": row.row_id, PREDICTED[kind]: row.predicted, "low_s": row.low, "high_s": row.high}
            for row in answered
        ],
        ("row_id", PREDICTED[kind], "low_s", "high_s"),
    )
    return score.scores(rows)


def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = 45.0,
    out: str | Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[MachineProfile, Path]:
    """Profiles this machine in a runtime for about ``seconds``; returns the profile and the file it was written to."""
    from chipwise.profile.calibrate import calibrate as profile_machine

    path = Path(out) if out is not None else profile_path(runtime, threads)
    profile = profile_machine(runtime=runtime, threads=threads, seconds=seconds, progress=progress)
    before = kept_profile(runtime, threads)
    if before is not None and before.thermal is not None:  # heat is no matter of rates
        profile = replace(profile, thermal=before.thermal)
    profile.save(path)
    return profile, path

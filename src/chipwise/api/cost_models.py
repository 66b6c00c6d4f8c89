"""Calibrates the cost model of this machine, and refines the calibration with measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from chipwise.core.arguments import public
from chipwise.core.files import check_output, storage
from chipwise.deploy.calibrate import calibrate as calibration
from chipwise.deploy.calibrate.learning import Learned, fit_from_measurements
from chipwise.deploy.measure.store import kept_as, profile_path, save_profile, saved_profile
from chipwise.deploy.runtimes import NEEDS, missing, table_name
from chipwise.errors import InputError, MissingExtra, SpecError, Unreachable
from chipwise.hardware.device import MachineProfile


@public
def learn(*, runtime: str = "onnxruntime", threads: int = 1, count: int | None = None) -> tuple[Learned, Path]:
    """Refines this machine's profile with measurements made on it; returns the changes and the profile's file.

    Args:
        runtime: The runtime of the profile.
        threads: The number of threads of the profile.
        count: Use only this number of measurements, chosen at random. Default: all.

    Raises:
        InputError: There is no profile for this runtime and number of threads, or there are too few measurements.
    """
    profile = saved_profile(runtime, threads)
    if profile is None:
        raise InputError(
            f"this machine has no profile in {runtime} with {threads} thread{'s' if threads > 1 else ''}; "
            "run: chipwise calibrate"
        )
    learned = fit_from_measurements(profile, count=count)
    return learned, save_profile(learned.profile, runtime=runtime, threads=threads)


@public
def calibrate(
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    seconds: float = 75.0,
    out: str | Path | None = None,
    on_progress: Callable[[str, float], None] | None = None,
    images: bool = False,
    ranking: bool = False,
    sounds: bool = False,
) -> tuple[MachineProfile, Path]:
    """Measures this machine in a runtime; returns the profile and its file.

    If a calibration was stopped, a call within a day continues it, provided that machine and versions are the same.

    Args:
        runtime: The runtime to calibrate.
        threads: Number of threads of the runtime.
        seconds: Approximate duration in seconds.
        out: File for the profile. Default: the file that all commands read.
        on_progress: Called with a description of the current measurement, and the share of the work that is done.
        images: Calibrate for image classifiers. Their profile is separate from the one for language models.
        ranking: Calibrate for ranking models, which also have a separate profile.
        sounds: Calibrate for speech recognisers, which also have a separate profile.

    Raises:
        InputError: ``seconds`` is not a positive, finite number, or there are more threads than cores.
        Unreachable: This machine lacks something that the runtime needs, such as a browser.
    """
    runtime = table_name(runtime)
    needs = NEEDS.get(runtime)
    if needs is not None and find_spec(needs.module) is None:
        raise MissingExtra(needs.module, needs.extra)
    if lack := missing(runtime):
        raise Unreachable(f"{runtime}: {lack}")
    kinds = [name for name, asked in (("images", images), ("ranking", ranking), ("sounds", sounds)) if asked]
    if len(kinds) > 1:
        raise InputError("give only one of images, ranking and sounds: each has a separate profile")
    kind = "".join(kinds)
    kept = kept_as(runtime, kind)
    path = Path(out) if out is not None else profile_path(kept, threads)
    try:
        before = saved_profile(kept, threads)
    except SpecError:  # a damaged profile is overwritten
        before = None
    if out is None:
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path)
    profile = calibration.calibrate(
        runtime=runtime, threads=threads, seconds=seconds, on_progress=on_progress,
        partial=profile_path(kept, threads).with_suffix(".partial.jsonl"), kind=kind,
    )  # fmt: skip
    if before is not None and before.thermal is not None:  # calibration does not measure this
        profile = replace(profile, thermal=before.thermal)
    if out is None:
        return profile, save_profile(profile, runtime=kept, threads=threads)
    profile.save(path)
    return profile, path

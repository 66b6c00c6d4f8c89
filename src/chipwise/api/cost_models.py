"""Fitting, validating and calibrating the cost models, and learning from measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chipwise.core.arguments import public
from chipwise.core.files import check_output, storage
from chipwise.deploy.calibrate.learning import Learned
from chipwise.deploy.measure.store import kept_as, profile_path, save_profile, saved_profile
from chipwise.deploy.runtimes import NEEDS, table_name
from chipwise.errors import ChipwiseError, InputError, MissingExtra, SpecError
from chipwise.hardware.device import MachineProfile

if TYPE_CHECKING:
    from chipwise_fitting import Score


@public
def fit(
    *,
    kinds: Sequence[str] = (),
    tables: str | Path | None = None,
    out: str | Path | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Fits the shipped cost models again, from the tables of the package aiconfigurator-core; returns reports.

    Args:
        kinds: Of gemm, attention, latent, experts, collective, scan, power and serving; all unless given.
        tables: The package's ``systems`` folder. Default: where it is installed.
        out: A folder for the fitted arrays. Default: chipwise's own data, in a source checkout only.
        on_progress: Called with a line of text at each step.

    Raises:
        UnknownName: There is no such kind.
        InputError: ``out`` is missing and chipwise is not a source checkout.
        MissingExtra: chipwise-fitting, or a package that it needs, is not installed.
    """
    require_fitting()
    import chipwise_fitting

    paths = (None if each is None else Path(each) for each in (tables, out))
    return chipwise_fitting.fit(kinds, *paths, on_progress=on_progress)


def require_fitting() -> None:
    """Checks that the maintainers' package, which fits and validates, is installed.

    Raises:
        ChipwiseError: It is not; says how to install it.
    """
    if find_spec("chipwise_fitting") is None:
        raise ChipwiseError("chipwise-fitting is not installed; in a clone of chipwise: pip install ./fitting")


@public
def learn(*, runtime: str = "onnxruntime", threads: int = 1, count: int | None = None) -> tuple[Learned, Path]:
    """Refines this machine's profile with measurements made on it; returns what changed and the profile's file.

    Args:
        runtime: The profile's runtime.
        threads: The profile's threads.
        count: Learn from this many of the measurements, drawn at random.

    Raises:
        InputError: There is no profile, or too few measurements.
    """
    from chipwise.deploy.calibrate.learning import fit_from_measurements

    profile = saved_profile(runtime, threads)
    if profile is None:
        raise InputError(
            f"this machine has no profile in {runtime} with {threads} thread{'s' if threads > 1 else ''}; "
            "run: chipwise calibrate"
        )
    learned = fit_from_measurements(profile, count=count)
    return learned, save_profile(learned.profile, runtime=runtime, threads=threads)


@public
def validate(
    kind: str,
    truth: str | Path,
    out: str | Path,
    *,
    leave_out: Literal["none", "model", "device", "family", "vendor"] = "none",
) -> list[Score]:
    """Predicts measured rows, writes the predictions to ``out``, and returns their errors, overall and by subset.

    Args:
        kind: ``gemm``, ``attention``, ``serving``, ``power``, ``edge`` (runs of one user, as in llama.cpp and MLX),
            ``vendors`` (batches of equal requests), ``vision`` (image models), ``phones`` (parts of models),
            ``energy`` (served models, images, videos), ``layers`` (kernels of another laboratory) or ``load`` (runs of
            vLLM under load: a folder with load_runs.csv, load_percentiles.csv or requests/).
        truth: A folder that holds ``KIND.csv`` (packed or not; ``energy`` and ``layers`` are folders in it), or
            the file.
        out: Where the predictions go: row_id, the prediction, and the ends of its 90 % interval.
        leave_out: ``device`` or ``family`` to predict each row with a fit that had not seen its device or family;
            ``vendor`` for tables of whole runs; ``model`` for these but ``edge``.

    Raises:
        UnknownName: There is no such kind.
        SpecError: The file is missing, lacks a column, or holds a measured value that is not a number above zero.
        MissingExtra: chipwise-fitting, or pandas for ``power``, is not installed.
    """
    require_fitting()
    import chipwise_fitting

    return chipwise_fitting.validate(kind, Path(truth), Path(out), leave_out=leave_out)


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
    """Measures what this machine can do in a runtime; returns the profile and the file that holds it.

    One that was stopped goes on with what it had measured, within a day and on the same machine and versions.

    Args:
        runtime: The runtime to calibrate.
        threads: Threads of the runtime.
        seconds: About how long it may take.
        out: The profile's file; by default where every command finds it.
        on_progress: Called with what is being measured and the share that is done.
        images: Calibrate for image classifiers; this profile is kept beside that for models of tokens.
        ranking: Calibrate for ranking models, likewise.
        sounds: Calibrate for models that transcribe sound, likewise.

    Raises:
        InputError: ``seconds`` is not a positive, finite number, or there are more threads than cores.
    """
    from chipwise.deploy.calibrate.calibrate import calibrate as profile_machine

    runtime = table_name(runtime)
    needs = NEEDS.get(runtime)
    if needs is not None and find_spec(needs.module) is None:
        raise MissingExtra(needs.module, needs.extra)
    if images + ranking + sounds > 1:
        raise InputError("calibrate for images, for ranking or for sounds: each has a profile of its own")
    kept = kept_as(runtime, images=images, ranking=ranking, sounds=sounds)
    path = Path(out) if out is not None else profile_path(kept, threads)
    try:
        before = saved_profile(kept, threads)
    except SpecError:  # damaged: calibrating is the remedy
        before = None
    if out is None:
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path)
    profile = profile_machine(
        runtime=runtime, threads=threads, seconds=seconds, on_progress=on_progress,
        partial=profile_path(kept, threads).with_suffix(".partial.jsonl"),
        images=images, ranking=ranking, sounds=sounds,
    )  # fmt: skip
    if before is not None and before.thermal is not None:  # calibration does not measure it
        profile = replace(profile, thermal=before.thermal)
    if out is None:
        return profile, save_profile(profile, runtime=kept, threads=threads)
    profile.save(path)
    return profile, path

"""A profile that learns: its constants and residual updated by what was measured, in a run or over all of them.

What calibration's own models taught is in the profile, so learning starts from there with the first measurement.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from chipwise.core.errors import InputError
from chipwise.hardware.device import CheckError, MachineProfile
from chipwise.profile.refit import Prepared, Sample, cross_check, errors, prepare, refit
from chipwise.profile.store import MeasurementStore, Stored

LEAST = 3  # measured models, before the store is worth fitting to
LEAST_CHECKED = 12  # measured models, before the interval is theirs and not calibration's


def learn(profile: MachineProfile, seen: Prepared) -> MachineProfile:
    """``profile`` updated by measured models that :func:`chipwise.profile.refit.prepare` priced by it.

    Intervals come from predicting each of them without itself, once there are enough.
    """
    count = len(seen.observed)
    if not count:
        return profile
    formats = {name for item in seen.observed if item.peak_memory_bytes for name in item.design.formats.all}
    memory = count >= LEAST_CHECKED and set(profile.memory.per_matrix_byte) <= formats
    checks = dict(profile.checks)
    if count >= LEAST_CHECKED:
        checks |= cross_check(profile, seen, folds=5, memory=memory)
    return replace(refit(profile, seen, memory=memory), checks=checks, learned_from=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A profile fitted to the store, what it was fitted to, and its errors on what was left out, before and after."""

    profile: MachineProfile
    used: tuple[str, ...]  # ids of measurements
    before: dict[str, CheckError]
    after: dict[str, CheckError]


def fit_from_measurements(
    profile: MachineProfile, store: MeasurementStore | None = None, *, count: int | None = None, seed: int = 0
) -> Learned:
    """Updates ``profile`` by the stored measurements of its machine, runtime and threads.

    Args:
        profile: A calibrated profile (or one of a data sheet's rates, for a device that cannot be calibrated).
        store: Where measurements are kept; the user's own unless given.
        count: Few-shot: this many of them, drawn at random by ``seed``.
        seed: Of the draw.

    Raises:
        InputError: There are too few measurements whose design is known.
    """
    store = store or MeasurementStore()
    found = [item for item in store.entries(runtime=profile.runtime, threads=profile.threads) if _fits(profile, item)]
    if count is not None and count < len(found):
        found = random.Random(seed).sample(found, count)
    samples = [Sample(design=item.design, measured=item.measurement) for item in found if item.design is not None]
    if len(samples) < LEAST:
        raise InputError(
            f"{store.path} holds {len(samples)} measurements of {profile.machine.name} in {profile.runtime} with "
            f"{profile.threads} threads whose design is known; learning takes at least {LEAST}. "
            "Measure more: chipwise measure MODEL, or chipwise search"
        )
    seen = prepare(profile, samples)
    learned = learn(profile, seen)
    return Learned(
        profile=learned,
        used=tuple(item.id for item in found),
        before=errors(profile, seen),
        after=cross_check(profile, seen, folds=min(10, len(samples)), memory=learned.memory != profile.memory),
    )


def _fits(profile: MachineProfile, item: Stored) -> bool:
    decodes = item.design is not None and not item.measurement.encodes
    return decodes and item.measurement.device == profile.machine.name

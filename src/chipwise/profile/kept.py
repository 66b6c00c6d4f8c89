"""The user's own profiles of this machine, one a runtime and number of threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chipwise.core.places import data_folder
from chipwise.hardware.device import MachineProfile, Thermal


def profile_path(runtime: str, threads: int) -> Path:
    """Where the profile is kept."""
    return data_folder() / "profiles" / f"{runtime}-{threads}.json"


def kept_profile(runtime: str, threads: int) -> MachineProfile | None:
    """The kept profile, or None where this machine was not calibrated so."""
    path = profile_path(runtime, threads)
    return MachineProfile.load(path) if path.exists() else None


def keep_thermal(thermal: Thermal, *, runtime: str, threads: int) -> bool:
    """Writes what sustained load showed into the kept profile; whether there is one."""
    profile = kept_profile(runtime, threads)
    if profile is None:
        return False
    replace(profile, thermal=thermal).save(profile_path(runtime, threads))
    return True

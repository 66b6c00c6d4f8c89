"""Makes this machine, with its calibrated profile, usable as a device in commands that read data sheets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chipwise.deploy.measure.store import kept_as, saved_profile
from chipwise.design.run.winner import read_winner
from chipwise.errors import InputError, Unsupported
from chipwise.hardware.suited import OWN
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.cases import calibrated_case, priced_here
from chipwise.predict.served.estimate import estimate
from chipwise.predict.served.offload import remark
from chipwise.predict.served.request import Request, parameters_of, taken_for

if TYPE_CHECKING:
    from chipwise.hardware.device import MachineProfile

NAMES = ("here", "local")  # names of this machine in --device


def require_sheet(device: object, what: str, *, such: str = "h100-sxm") -> None:
    """Refuses this machine as ``device`` if only data sheets work.

    Raises:
        Unsupported: ``device`` is this machine.
    """
    if is_here(device):
        raise Unsupported(f"{what}, not by this machine's calibration: name another --device, such as {such}")


def is_here(device: object) -> bool:
    """Whether a device's name means this machine."""
    return isinstance(device, str) and device.lower() in NAMES


def weights_here(model: str | ArchSpec, named: str | None) -> str | None:
    """The named format; by default, and for ``own``, the format of a winner's folder; None for anything else."""
    return weights_of_winner(model) if named in (None, OWN) else named


def weights_of_winner(model: str | ArchSpec) -> str | None:
    """The weight format of a winner's folder; None for anything else."""
    winner = read_winner(Path(model)) if isinstance(model, str) else None
    return None if winner is None else winner.design.weights


def profile_here(runtime: str, threads: int = 1, *, kind: str = "") -> MachineProfile:
    """This machine's profile for language models, or for those of ``kind``: ``images``, ``ranking`` or ``sounds``.

    Raises:
        InputError: There is no such profile.
    """
    if threads < 1:
        raise InputError(f"threads: must be at least 1, not {threads}")
    profile = saved_profile(kept_as(runtime, kind), threads)
    if profile is None:
        raise InputError(
            f"this machine was not calibrated in {runtime} with {threads} thread{'s' if threads > 1 else ''}; "
            f"run: chipwise calibrate --runtime {runtime} --threads {threads}{kind and f' --{kind}'}"
        )
    return profile


def kind_of(*models: str | Path | ArchSpec) -> str:
    """The profile that the models need: ``images``, ``ranking`` or ``sounds``; empty for text, and for several."""
    archs = [model if isinstance(model, ArchSpec) else resolve(model) for model in models]
    kinds = {arch.first_stem.calibration for arch in archs}
    return kinds.pop() if len(kinds) == 1 else ""


def estimate_on(request: Request, *, hypothetical: bool = False) -> CostEstimate:
    """Estimates a request on its device, which may be this machine; ``hypothetical`` as :func:`chipwise.estimate`."""
    if is_here(request.device):
        return estimate_here(request)
    found = estimate(request, hypothetical=hypothetical)
    return replace(found, does_not_fit=found.does_not_fit + remark(request)) if found.does_not_fit else found


def estimate_here(request: Request) -> CostEstimate:
    """Estimates a request on this machine with one thread, by its calibration in the runtime (``onnxruntime``).

    Raises:
        InputError: This machine was not calibrated in this runtime, or several devices are requested.
        Unsupported: The profile has no rates for a block or format.
    """
    name = request.model if isinstance(request.model, ArchSpec) else str(request.model)
    served = request.deployment
    priced_here(name if isinstance(name, ArchSpec) else resolve(name), images=request.images, audio_s=request.audio_s)
    weights = weights_here(name, served.weights)
    profile = profile_here(str(served.runtime or "onnxruntime"), kind=kind_of(name))
    found = calibrated_case(
        name, profile, weights=weights, kv=served.kv, tp=served.tp, pp=served.pp, ep=served.ep, dp=served.dp,
        batch=request.batch, prompt_tokens=request.prompt_tokens, new_tokens=request.new_tokens,
    ).estimate  # fmt: skip
    whole, active = parameters_of(name)
    return replace(found, notes=(*taken_for(name), *found.notes), parameters=whole, active_parameters=active)

"""Lets commands that expect a data sheet use this machine's calibrated profile instead."""

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
    """Checks that ``device`` is not this machine, for commands that work only with data sheets.

    Raises:
        Unsupported: ``device`` is this machine.
    """
    if is_here(device):
        raise Unsupported(f"{what}, not by this machine's calibration: name another --device, such as {such}")


def is_here(device: object) -> bool:
    """Whether ``device`` names this machine."""
    return isinstance(device, str) and device.lower() in NAMES


def weights_here(model: str | ArchSpec, named: str | None) -> str | None:
    """The weight format ``named``.

    If ``named`` is None or ``own``, returns a winner's own format, or None for a model that is not a winner.
    """
    return weights_of_winner(model) if named in (None, OWN) else named


def weights_of_winner(model: str | ArchSpec) -> str | None:
    """A winner's weight format; None if the model is not a winner's folder."""
    winner = read_winner(Path(model)) if isinstance(model, str) else None
    return None if winner is None else winner.design.weights


def profile_here(runtime: str, threads: int = 1, *, kind: str = "") -> MachineProfile:
    """This machine's profile for language models, or for the ``kind`` ``images``, ``ranking`` or ``sounds``.

    Raises:
        InputError: This machine was not calibrated for this kind, runtime and number of threads.
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
    """The kind of profile that models need: ``images``, ``ranking`` or ``sounds``; empty for text or mixed kinds."""
    archs = [model if isinstance(model, ArchSpec) else resolve(model) for model in models]
    kinds = {arch.first_stem.calibration for arch in archs}
    return kinds.pop() if len(kinds) == 1 else ""


def estimate_on(request: Request, *, hypothetical: bool = False) -> CostEstimate:
    """Estimates a request on its device or on this machine; for ``hypothetical`` see :func:`chipwise.estimate`."""
    if is_here(request.device):
        return estimate_here(request)
    found = estimate(request, hypothetical=hypothetical)
    return replace(found, does_not_fit=found.does_not_fit + remark(request)) if found.does_not_fit else found


def estimate_here(request: Request) -> CostEstimate:
    """Estimates a request on this machine, from the machine's calibration with one thread of ``onnxruntime``.

    Raises:
        InputError: This machine was not calibrated in this runtime, or the request is for several devices.
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

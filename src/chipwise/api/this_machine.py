"""Makes this machine, with its calibrated profile, usable as a device in commands that read data sheets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.deploy.measure.store import kept_as, saved_profile
from chipwise.design.run.winner import read_winner
from chipwise.errors import InputError, Unsupported
from chipwise.hardware.suited import OWN
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.explain.cases import calibrated_case, priced_here

if TYPE_CHECKING:
    from chipwise.hardware.device import MachineProfile

NAMES = ("here", "local")  # names of this machine in --device


READ = ("images", "audio_s")  # fields of a request's images or sound


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


def profile_here(
    runtime: str, threads: int = 1, *, images: bool = False, ranking: bool = False, sounds: bool = False
) -> MachineProfile:
    """This machine's profile for language models, image classifiers, ranking models or speech recognisers.

    Raises:
        InputError: There is no such profile.
    """
    if threads < 1:
        raise InputError(f"threads: must be at least 1, not {threads}")
    profile = saved_profile(kept_as(runtime, images=images, ranking=ranking, sounds=sounds), threads)
    if profile is None:
        kind = " --images" if images else " --ranking" if ranking else " --sounds" if sounds else ""
        raise InputError(
            f"this machine was not calibrated in {runtime} with {threads} thread{'s' if threads > 1 else ''}; "
            f"run: chipwise calibrate --runtime {runtime} --threads {threads}{kind}"
        )
    return profile


def read_by(*models: str | Path | ArchSpec) -> dict[str, bool]:
    """Which special profile the models need: ``images``, ``ranking`` or ``sounds``."""
    archs = [model if isinstance(model, ArchSpec) else resolve(model) for model in models]
    stems = [arch.stem or arch.encoder_stem for arch in archs]  # for an audio encoder-decoder, the encoder's
    kinds = {"images": ImageStem, "ranking": RankingStem, "sounds": SoundStem}
    return {name: all(isinstance(stem, kind) for stem in stems) for name, kind in kinds.items()}


def estimate_here(model: str | Path | ArchSpec, *, runtime: str | None, **asked: Any) -> CostEstimate:
    """Estimates ``model`` on this machine with one thread, by its calibration.

    Args:
        model: See :func:`chipwise.estimate`.
        runtime: The calibrated runtime. Default: ``onnxruntime``.
        asked: ``weights``, ``batch``, ``prompt_tokens``, ``new_tokens``, ``tp``, ``pp``, ``ep``, ``dp`` and ``kv``.

    Raises:
        InputError: This machine was not calibrated in this runtime, or several devices are requested.
        Unsupported: The profile has no rates for a block or format.
    """
    name = model if isinstance(model, ArchSpec) else str(model)
    priced_here(resolve(name) if isinstance(name, str) else name, **{each: asked.get(each, 0) for each in READ})
    asked["weights"] = weights_here(name, asked.get("weights"))
    profile = profile_here(runtime or "onnxruntime", **read_by(name))
    return calibrated_case(name, profile, **asked).estimate

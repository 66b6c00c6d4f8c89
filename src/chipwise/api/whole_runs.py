"""Estimates by cost models that were fitted to whole runs: for images and videos, and for models on phone NPUs."""

from __future__ import annotations

from chipwise.core.arguments import public
from chipwise.core.results import ResultTable
from chipwise.design.models.this_machine import is_here, require_sheet
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.served.picture_changes import PictureExplanation
from chipwise.predict.served.picture_changes import explain_pictures as explain
from chipwise.predict.served.pictures import estimate_of, picture_of
from chipwise.predict.whole_runs.law_for import WholeRunLaw, law_for
from chipwise.predict.whole_runs.phone_models import estimate_parts as parts


def law_of(model: str, device: str, part: str | None = None) -> WholeRunLaw | None:
    """Returns the cost model, fitted to whole runs, that predicts ``model`` on ``device``: ``pictures`` or ``parts``.

    The result is ``None`` if the model is predicted kernel by kernel.

    Args:
        model: See :func:`estimate`.
        device: See :func:`estimate`.
        part: The requested part of the model (encoder, decoder, …), for a phone chip.

    Raises:
        UnknownName: The device is unknown.
    """
    return law_for(model, None if is_here(device) else device, part)


PICTURES = "diffusion models are predicted from published runs on devices with data sheets"


class PartTable(ResultTable[RunEstimate]):
    """Estimates of the parts of one model."""


@public
def estimate_pictures(
    model: str,
    *,
    device: str = "h100-sxm",
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    steps: int | None = None,
    batch: int = 1,
    devices: int = 1,
    runtime: str | None = None,
) -> RunEstimate:
    """Predicts time, power, energy and price of a batch of images or videos from a diffusion model.

    >>> import chipwise
    >>> found = chipwise.estimate_pictures("black-forest-labs/FLUX.1-dev", device="h100-sxm")
    >>> 2 < found.latency_s < 20
    True

    Args:
        model: A name that contains the name of a known diffusion model, such as ``stable-diffusion-3.5-large``.
        device: A data sheet's name, alias or file.
        height: Height in pixels. Default: 1024, for videos 480.
        width: Width in pixels. Default: 1024, for videos 832.
        frames: Number of frames of a video; 1 for an image. Default: 81 for video models.
        steps: Denoising steps. Default: 28; for videos 50; for models distilled to few steps 4.
        batch: Images or videos generated together.
        devices: Devices over which each image or video is split.
        runtime: ``diffusers``.

    Raises:
        UnknownName: A name is unknown.
        SpecError: A size is wrong.
        Unsupported: The device lists no rate for 16-bit matrix products.
        DoesNotFit: The transformer's weights do not fit.
    """
    require_sheet(device, PICTURES)
    asked = picture_of(
        model, device=device, height=height, width=width, frames=frames, steps=steps, batch=batch, devices=devices,
        runtime=runtime,
    )  # fmt: skip
    return estimate_of(model, asked)


@public
def explain_pictures(
    model: str, *, device: str = "h100-sxm", steps: int | None = None, batch: int = 1, devices: int = 1
) -> PictureExplanation:
    """Explains what takes the time of generating images or videos, and which changes shorten it.

    >>> import chipwise
    >>> found = chipwise.explain_pictures("stable-diffusion-3.5-large")
    >>> round(sum(found.estimate.shares.values()), 6)
    1.0

    Args:
        model: See :func:`estimate_pictures`.
        device: A data sheet's name, alias or file.
        steps: Denoising steps. Default: the model's usual number.
        batch: Images or videos generated together.
        devices: Devices over which each image or video is split.

    Raises:
        UnknownName: The model or device is not known.
        Unsupported: The device lists no rate for 16-bit matrix products.
        DoesNotFit: The transformer's weights do not fit.
    """
    require_sheet(device, PICTURES)
    return explain(model, device=device, steps=steps, batch=batch, devices=devices)


@public
def estimate_parts(
    model: str,
    *,
    device: str = "snapdragon-8-elite",
    part: str | None = None,
    runtime: str | None = None,
    weights: str | None = None,
) -> PartTable:
    """Predicts each part of a model that Qualcomm compiles for its chips: an encoder, a decoder, a text tower.

    >>> import chipwise
    >>> [found.part for found in chipwise.estimate_parts("openai/whisper-small", device="snapdragon-8-elite")]
    ['decoder', 'encoder']

    Args:
        model: A model on Qualcomm AI Hub, such as ``whisper_small``, ``openai_clip`` or ``vit``.
        device: A Snapdragon or Dragonwing chip, ``CHIP:gpu`` or ``CHIP:cpu`` for units other than the NPU.
        part: Only this part.
        runtime: qnn, onnxruntime, litert, … Default: qnn on the NPU, litert elsewhere.
        weights: fp16, w8a16, w8a8, w4a16. Default: fp16.

    Raises:
        UnknownName: A name is unknown.
        Unsupported: The device is not a Qualcomm chip.
    """
    require_sheet(device, "parts are predicted from measurements on Qualcomm chips", such="snapdragon-8-elite")
    found = parts(model, device=device, part=part, runtime=runtime, weights=weights)
    return PartTable(f"{model} on {device}", found)

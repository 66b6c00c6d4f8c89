"""Predicts time, power, energy and price of images or videos from a diffusion model, by laws fitted to whole runs."""

from __future__ import annotations

from chipwise.core import units
from chipwise.errors import DoesNotFit, SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.cost.model import Predicted
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.served import stack_law
from chipwise.predict.served.served_energy import constants
from chipwise.predict.whole_runs import diffusion
from chipwise.predict.whole_runs.diffusion import KNOWN, Picture, base_name, known_name, picture_law, rated_by_images
from chipwise.predict.whole_runs.picture_models import PICTURE_MODELS
from chipwise.predict.whole_runs.power_draw import Shares, mean_watts, watts_law
from chipwise.predict.whole_runs.sums import value_of

RUNTIME = "diffusers"
MOST_PIXELS = 16_384
VIDEOS = ("hunyuanvideo", "wan", "cogvideo", "ltx", "mochi")
FEW_STEPS = ("flux.1-schnell", "stable-diffusion-3.5-large-turbo", "sdxl-turbo")  # distilled to about four steps
SORTS = {"dit-": "small", "stable-diffusion-v1": "first", "stable-diffusion-2": "second", "sdxl-turbo": "first"}
SIZES = {
    "image": (1024, 1024, 1, 28),
    "video": (480, 832, 81, 50),
    "small": (256, 256, 1, 250),
    "first": (512, 512, 1, 50),
    "second": (768, 768, 1, 50),
}
"""Default height, width, frames and steps of each kind of model, as in most published runs or as in training."""


def picture_of(
    model: str,
    *,
    device: str | DeviceProfile,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    steps: int | None = None,
    batch: int = 1,
    devices: int = 1,
    runtime: str | None = None,
) -> Picture:
    """Builds the request for a batch of images or videos from a diffusion model.

    Args:
        model: A name that contains one of ``predict.whole_runs.diffusion.KNOWN``.
        device: A data sheet or its name.
        height: Pixels. Default: 1024 for images, 480 for videos.
        width: Pixels. Default: 1024 for images, 832 for videos.
        frames: Number of frames. Default: 1 for images, 81 for videos.
        steps: Denoising steps. Default: 28 for images, 50 for videos, 4 for models distilled to few steps.
        batch: Number of images or videos.
        devices: Number of devices over which the positions of each image are split.
        runtime: ``diffusers``, the only runtime that is predicted.

    Raises:
        UnknownName: The model, device or runtime is unknown.
        SpecError: A size is not above zero.
    """
    if (runtime or RUNTIME).lower() not in (RUNTIME, "pytorch", "torch"):
        raise UnknownName("runtime for image generation", runtime or "", [RUNTIME])
    known = known_name(model)
    if known is None:
        raise UnknownName("diffusion transformer", model, KNOWN)
    sort = next((sort for name, sort in SORTS.items() if known.startswith(name)), "image")
    usual = SIZES["video" if known.startswith(VIDEOS) else sort]
    asked = [own if given is None else given for given, own in zip((height, width, frames, steps), usual, strict=True)]
    if steps is None and known in FEW_STEPS:
        asked[3] = 4
    for name, value in zip(("height", "width", "frames", "steps"), asked, strict=True):
        if not 1 <= value <= MOST_PIXELS:
            raise SpecError(f"must be from 1 to {MOST_PIXELS:,}, not {value}", field=name)
    sheet = datasheet.load(device) if isinstance(device, str) else device
    return Picture(
        model=KNOWN[known],
        device=sheet,
        height=asked[0],
        width=asked[1],
        frames=asked[2],
        steps=asked[3],
        batch=batch,
        devices=devices,
    )


def estimate_of(model: str, picture: Picture) -> RunEstimate:
    """Predicts seconds, watts, joules and price of a batch from ``model``.

    Raises:
        Unsupported: The device lists no rate for 16-bit matrix products.
        DoesNotFit: The transformer's weights need more memory than the device has.
    """
    sheet, sort = picture.device, "video" if picture.frames > 1 else "image"
    _check_memory(model, picture)
    held = constants()
    place = f"{sheet.name}|text-to-{sort}"
    told = {"device": sheet.name, "vendor": sheet.vendor, "place": place, "model": base_name(model)}
    seconds = held["pictures_s"]
    situation = seconds.situation(**told)
    least = stack_law.constants().halfwidth("unseen", "*") if _far(sheet) else 0.0
    batch_s = float(value_of(picture_law(picture), seconds.terms()))
    latency = Predicted.around(batch_s, max(least, _halfwidth("pictures_s", situation, place)))
    rate = Predicted.around(picture.batch / batch_s, latency.log_halfwidth)
    metrics = {"latency_s": latency, f"{sort}s_per_s": rate}
    notes = []
    try:
        shares = Shares(memory=0.0, compute=picture.product_s / batch_s, attention=picture.attention_s / batch_s)
        board_w = mean_watts(sheet, watts_law(sheet, shares, picture.levels), held["pictures_w"].terms())
        watts = picture.devices * board_w
        metrics["power_w"] = Predicted.around(watts, max(least / 2, _halfwidth("pictures_w", situation, place)))
        joules = watts * batch_s / picture.batch
        metrics[f"joules_per_{sort}"] = Predicted.around(joules, max(least, _halfwidth("pictures_j", situation, place)))
    except Unsupported as error:
        notes.append(f"no energy: {error}")
    try:
        usd = picture.devices * sheet.price_usd_per_s * batch_s / picture.batch
        metrics[f"usd_per_1k_{sort}s"] = Predicted.around(1000 * usd, latency.log_halfwidth)
    except Unsupported as error:
        notes.append(f"no price: {error}")
    if _far(sheet):
        notes.append(
            f"no diffusion model was timed on {sheet.name} or similar chips: the interval is the one for other vendors"
            + (
                "; matrix products use rates of image models, which were timed on such cards"
                if rated_by_images(sheet)
                else ""
            )
        )
    known = PICTURE_MODELS.get(known_name(model) or "")
    parts = {} if known is None else known.parts()
    if diffusion.BYTES * sum(parts.values()) > sheet.usable_bytes:
        whole = units.show(diffusion.BYTES * sum(parts.values()), "bytes")
        notes.append(f"all parts together take {whole} in bf16: the text encoders must be unloaded before denoising")
    size = f"{picture.width} x {picture.height}"
    size += f", {picture.frames} frames" if picture.frames > 1 else ""
    return RunEstimate(
        model=model,
        setting=f"{picture.batch} {sort}{'s' if picture.batch > 1 else ''} of {size}, {picture.steps} steps, bf16",
        device=sheet.label,
        runtime=RUNTIME,
        devices=picture.devices,
        metrics=metrics,
        provenance=f"predicted ({situation} device; rates of whole runs of diffusers)",
        notes=tuple(notes),
        parameters=parts,
        shares=shares_of(picture),
    )


MEANINGS = {
    "products": "products with weights",
    "launches": "launching kernels",
    "attention": "attention",
    "activations": "moving activations",
    "pixels": "decoding pixels",
    "batch": "what each batch begins with",
    "exchange": "exchange between devices",
    "exchanges": "waiting for exchanges",
}
"""Descriptions of the parts of the law's sum."""


def shares_of(picture: Picture) -> dict[str, float]:
    """The share of a batch's time that each part of :data:`MEANINGS` takes, by the fitted rates."""
    terms = constants()["pictures_s"].terms()
    seconds = {amount.terms[0][0]: float(value_of([amount], terms)) for amount in picture_law(picture)}
    hidden = min("products", "launches", key=lambda name: seconds[name])  # the shorter one is hidden
    total = sum(value for name, value in seconds.items() if name != hidden)
    return {
        meaning: seconds[name] / total for name, meaning in MEANINGS.items() if name != hidden and seconds.get(name)
    }


def _halfwidth(law: str, situation: str, place: str) -> float:
    held = constants()[law]
    if (
        f"{situation}|*" not in held.halfwidths
    ):  # no fold leaves a vendor out, so the widest half-width is that of unseen devices
        situation = "sibling"
    return held.halfwidth(situation, place)


def _far(sheet: DeviceProfile) -> bool:
    """Whether the device is of a different kind than those in the fit (NVIDIA's data-centre GPUs with HBM)."""
    return sheet.vendor not in constants()["pictures_s"].vendors or not sheet.level("dram").technology.startswith("HBM")


def _check_memory(model: str, picture: Picture) -> None:
    """Checks that the transformer's weights fit in memory.

    Raises:
        DoesNotFit: The weights exceed the memory.
    """
    needed, sheet = diffusion.BYTES * picture.model.parameters, picture.device
    if needed > sheet.usable_bytes:
        raise DoesNotFit(
            f"the weights of {model}'s transformer need {units.show(needed, 'bytes')} in bf16 and {sheet.label} has "
            f"{sheet.memory_said}; name a device with more memory"
        )

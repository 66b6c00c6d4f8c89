"""Commands for diffusion models and models on phone NPUs. Predictions come from published timings of whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options
from chipwise.cli.output import json_of, print_table, refuse, say, say_notes
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric

LABELS = {
    "latency_s": ("latency", "time"),
    "runs_per_s": ("runs per second", "count"),
    "images_per_s": ("images per second", "count"),
    "videos_per_s": ("videos per second", "count"),
    "power_w": ("power", "power"),
    "joules_per_image": ("energy per image", "energy"),
    "joules_per_video": ("energy per video", "energy"),
    "usd_per_1k_images": ("price of 1,000 images", "price"),
    "usd_per_1k_videos": ("price of 1,000 videos", "price"),
}


def pictures(
    model: Annotated[str, typer.Argument(help="A diffusion model of `chipwise models`.")],
    device: options.Device = "h100-sxm",
    height: Annotated[int | None, typer.Option(help="Height in pixels. Default: 1024 (video: 480).", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Width in pixels. Default: 1024 (video: 832).", min=1)] = None,
    frames: Annotated[int | None, typer.Option(help="Frames of a video; 1 for an image.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps. Default: the model's usual.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Images or videos per batch.", min=1)] = 1,
    tp: Annotated[int, typer.Option(help="Devices that compute each image or video together.", min=1)] = 1,
    runtime: Annotated[str | None, typer.Option(help="diffusers.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict seconds, watts, joules and price of images or videos from a diffusion model.

    chipwise pictures black-forest-labs/FLUX.1-dev --device h100-sxm --steps 28 --batch 4
    """
    found = api.estimate_pictures(
        model, device=device, height=height, width=width, frames=frames, steps=steps, batch=batch, devices=tp,
        runtime=runtime,
    )  # fmt: skip
    json_of(found) if as_json else print_runs([found])


def parts(
    model: Annotated[str, typer.Argument(help="A model that Qualcomm compiles part by part, such as whisper_small.")],
    device: Annotated[
        str, typer.Option(help="A Snapdragon or Dragonwing chip; CHIP:gpu or CHIP:cpu for units other than the NPU.")
    ] = "snapdragon-8-elite",
    part: Annotated[str | None, typer.Option(help="One part, such as encoder. Default: all.")] = None,
    runtime: Annotated[
        str | None, typer.Option(help="qnn, onnxruntime, litert, … Default: qnn on the NPU, litert elsewhere.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="fp16, w8a16, w8a8, w4a16. Default: fp16.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict each part of a model on a phone's chip: an encoder, a decoder, a text tower.

    chipwise parts openai/whisper-small --device snapdragon-8-elite --weights w8a16
    """
    found = api.estimate_parts(model, device=device, part=part, runtime=runtime, weights=weights)
    json_of(list(found)) if as_json else print_runs(found)


def answered(context: typer.Context, model: str, *, as_json: bool) -> bool:
    """Prints the answer of ``chipwise estimate`` if ``model`` is predicted from whole runs; returns whether it is.

    Raises:
        typer.BadParameter: An option that only applies to language models was given.
    """
    told = context.params
    law = answers.law_of(model, told["device"])
    if law is None:
        return False
    if law == "pictures":
        refuse(context, *SERVED, "weights", why="only applies to language models, not to diffusion models")
        if told["device"] == "all":
            raise typer.BadParameter("diffusion models are predicted for one device at a time, not for all")
        pictures(model, told["device"], batch=told["batch"], tp=told["tp"], runtime=told["runtime"], as_json=as_json)
    else:
        refuse(context, *SERVED, "tp", "batch", why="only applies to language models, not to parts on a phone")
        parts(model, told["device"], runtime=told["runtime"], weights=told["weights"], as_json=as_json)
    return True


def explained(context: typer.Context, model: str, *, as_json: bool) -> bool:
    """If ``model`` generates images or videos, prints where the time goes and returns True; otherwise returns False.

    Raises:
        typer.BadParameter: An option that only applies to other models was given.
    """
    if not answers.makes_pictures(model):
        return False
    refuse(context, *LANGUAGE, *EXPLAINED, why="only applies to language models, not to diffusion models")
    told = context.params
    found = api.explain_pictures(model, device=told["device"], batch=told["batch"], devices=told["tp"])
    if as_json:
        json_of(found)
        return True
    print_runs([found.estimate])
    shares = Table(columns=[Column(head="share of the time", right=True), Column(head="goes to", prose=True)])
    for name, share in found.estimate.shares.items():
        shares.add(units.show(share, "share"), name)
    print_table(shares)
    changes = Table(columns=[Column(head="times faster", right=True), Column(head="change"), Column(prose=True)])
    for each in found.changes:
        changes.add(units.number(each.times), each.what, each.why)
    print_table(changes)
    say("note: gains are for each change made alone, and come from the same cost model as the image's time")
    return True


def compared(context: typer.Context, models: Sequence[str], devices: Sequence[str] | None, *, as_json: bool) -> bool:
    """If all ``models`` generate images or videos, prints their comparison and returns True.

    Returns False if none of them does.

    Raises:
        typer.BadParameter: Only some of the models generate images or videos, an option for another kind of model was
            given, or no device was named.
    """
    drawn = [answers.makes_pictures(model) for model in models]
    if not any(drawn):
        return False
    if not all(drawn):
        other = models[drawn.index(False)]
        raise typer.BadParameter(f"{other} does not generate images like the other models; compare models of one kind")
    refuse(context, *LANGUAGE, why="only applies to language models, not to diffusion models")
    if devices is None:
        raise typer.BadParameter("name the devices for diffusion models: --device h100-sxm,b200-sxm")
    asked = {name: context.params[name] for name in ("batch", "runtime")}
    found = [
        api.estimate_pictures(model, device=device, devices=context.params["tp"], **asked)
        for device in devices
        for model in models
    ]
    json_of(found) if as_json else _print_compared(found)
    return True


def _print_compared(found: Sequence[answers.RunEstimate]) -> None:
    numbers = numeric("each, predicted", "energy", "$ per 1,000", "parameters")
    table = Table(columns=[Column(head="model"), Column(head="device"), *numbers])
    for each in found:
        sort = "image" if "images_per_s" in each.metrics else "video"
        rate, joules = each.metrics[f"{sort}s_per_s"], each.metrics.get(f"joules_per_{sort}")
        low, high = (None if end is None else 1 / end for end in (rate.high, rate.low))
        usd = each.metrics.get(f"usd_per_1k_{sort}s")
        table.add(
            each.model,
            each.device,
            units.span(1 / rate.value, low, high, "time"),
            units.show(joules.value, "energy") if joules else "unknown",
            units.show(usd.value, "price") if usd else "unknown",
            units.number(sum(each.parameters.values())) if each.parameters else "unknown",
        )
    print_table(table)


SERVED = (
    "prompt", "new", "kv", "images", "size", "audio", "pp", "ep", "dp", "memory", "gpu_layers", "n_cpu_moe", "host",
    "train_tokens",
)  # fmt: skip
LANGUAGE = ("prompt", "new", "kv", "weights", "images", "size", "audio")
EXPLAINED = (
    "pp", "ep", "dp", "shared", "train", "checkpoint", "sensitivity", "threads", "every", "other_chips",
    "html", "train_tokens", "memory",
)  # fmt: skip


def print_runs(found: Sequence[answers.RunEstimate]) -> None:
    """Prints the estimates of one model."""
    first = found[0]
    several = f"{first.devices} x " if first.devices > 1 else ""
    say(
        f"{first.model} on {several}{first.device}, {first.runtime}, {first.setting}: {first.provenance}, "
        "90 % intervals",
        bold=True,
    )
    table = Table(columns=[Column(), Column(prose=True)])
    for each in found:
        for name, value in each.metrics.items():
            label, kind = LABELS[name]
            own = f"{each.part}, {label}" if each.part else label
            table.add(own, units.span(value.value, value.low, value.high, kind))
    for name, count in first.parameters.items():
        table.add(f"parameters, {name}", f"{count:,}")
    print_table(table)
    say_notes(dict.fromkeys(note for each in found for note in each.notes))

"""Answers of ``chipwise estimate`` from published whole runs: diffusion models and models on phone NPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import is_default, json_of, print_table, refuse, say
from chipwise.core import units
from chipwise.core.layout import Column, Table

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


def answered(
    context: typer.Context,
    model: str,
    picture: Mapping[str, int | None],
    *,
    part: str | None,
    as_json: bool,
) -> bool:
    """Prints the answer if one of these laws applies; returns whether one did.

    Args:
        context: The command's, with the options that all models share.
        model: The model as given on the command line.
        picture: The options for diffusion models.
        part: The requested part of the model.
        as_json: Whether to print JSON.

    Raises:
        typer.BadParameter: An option of other models was typed.
    """
    law = answers.law_of(model, context.params["device"], part)
    if law != "pictures":
        refuse(context, *picture, why="only applies to diffusion models, such as stable-diffusion-3.5-large")
    if law != "parts":
        refuse(context, "part", why="only applies to models compiled by Qualcomm, such as whisper_small")
    if law is None:
        return False
    language = ("prompt", "new", "kv", "images", "size", "audio", "pp", "ep", "dp", *SHARED)
    training = ("train", "checkpoint", "microbatches", "zero", "train_tokens")
    if law == "pictures":
        refuse(context, *language, *training, "weights", why="only applies to language models, not to diffusion models")
        _pictures(context, model, picture, as_json=as_json)
    else:
        refuse(
            context, *language, *training, "tp", "batch", why="only applies to language models, not to parts on a phone"
        )
        _parts(context, model, part, as_json=as_json)
    return True


def _pictures(context: typer.Context, model: str, picture: Mapping[str, int | None], *, as_json: bool) -> None:
    told = context.params
    if told["device"] == "all":
        raise typer.BadParameter("diffusion models are predicted for one device at a time, not for all")
    asked = {name: told[name] for name in ("device", "batch", "runtime")} | dict(picture)
    found = api.estimate_pictures(model, devices=told["tp"], **asked)
    json_of(found) if as_json else _print([found])


def explained(context: typer.Context, model: str, *, as_json: bool) -> bool:
    """Whether ``model`` generates images; if so, prints where the time goes.

    Raises:
        typer.BadParameter: An option of other models was typed.
    """
    if not answers.makes_pictures(model):
        return False
    refuse(context, *LANGUAGE, *EXPLAINED, why="only applies to language models, not to diffusion models")
    told = context.params
    found = api.explain_pictures(model, device=told["device"], batch=told["batch"], devices=told["tp"])
    if as_json:
        json_of(found)
        return True
    _print([found.estimate])
    shares = Table(columns=[Column(head="share of the time", right=True), Column(head="goes to", prose=True)])
    for name, share in found.estimate.shares.items():
        shares.add(units.show(share, "share"), name)
    print_table(shares)
    changes = Table(columns=[Column(head="times faster", right=True), Column(head="change"), Column(prose=True)])
    for each in found.changes:
        changes.add(units.number(each.times), each.what, each.why)
    print_table(changes)
    say("note: each change is priced alone, by the same law as the image (predicted)")
    return True


def compared(context: typer.Context, models: Sequence[str], devices: Sequence[str] | None, *, as_json: bool) -> bool:
    """Whether all ``models`` generate images; if so, prints their comparison.

    Raises:
        typer.BadParameter: Only some of the models do, an option for another kind of model was given, or no device was
        named.
    """
    drawn = [answers.makes_pictures(model) for model in models]
    if not any(drawn):
        return False
    if not all(drawn):
        other = models[drawn.index(False)]
        raise typer.BadParameter(f"{other} does not generate images like the others; compare models of one kind")
    refuse(context, *LANGUAGE, why="only applies to language models, not to diffusion models")
    if devices is None:
        raise typer.BadParameter("name devices for diffusion models: --device h100-sxm,b200-sxm")
    asked = {name: context.params[name] for name in ("batch", "runtime")}
    found = [
        api.estimate_pictures(model, device=device, devices=context.params["tp"], **asked)
        for device in devices
        for model in models
    ]
    json_of(found) if as_json else _print_compared(found)
    return True


def _print_compared(found: Sequence[answers.RunEstimate]) -> None:
    heads = ("each, predicted", "energy", "$ per 1,000", "parameters")
    table = Table(columns=[Column(head="model"), Column(head="device"), *(Column(head=h, right=True) for h in heads)])
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


SHARED = ("memory", "gpu_layers", "n_cpu_moe", "host")  # options for language models only
LANGUAGE = ("prompt", "new", "kv", "weights", "images", "size", "audio")
EXPLAINED = (
    "pp", "ep", "dp", "shared", "train", "checkpoint", "sensitivity", "threads", "every", "other_chips", "apply", "out",
    "html", "train_tokens", "memory",
)  # fmt: skip


def _parts(context: typer.Context, model: str, part: str | None, *, as_json: bool) -> None:
    asked = {name: context.params[name] for name in ("runtime", "weights")}
    if not is_default(context, "device"):
        asked["device"] = context.params["device"]
    found = api.estimate_parts(model, part=part, **asked)
    json_of(list(found)) if as_json else _print(found)


def _print(found: Sequence[answers.RunEstimate]) -> None:
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
    for note in dict.fromkeys(note for each in found for note in each.notes):
        say(f"note: {note}")

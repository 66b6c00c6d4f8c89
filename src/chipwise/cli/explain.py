"""``chipwise explain``: why a model is slow on a chip, and what should change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, graph_files, image_size, options, quality
from chipwise.cli.output import json_of, notices, print_table, refuse, say, say_notes
from chipwise.cli.whole_runs import explained
from chipwise.core import units
from chipwise.core.extras import require
from chipwise.core.files import check_output, write_output
from chipwise.core.layout import Column, Table

WIDTH = 16  # length of the longest bar in characters


def command(
    context: typer.Context,
    model: options.Model,
    device: options.Device = "h100-sxm",
    memory: options.Memory = None,
    runtime: options.Runtime = None,
    prompt: options.Prompt = 1024,
    new: options.New = 128,
    images: options.Images = 0,
    size: options.ImageSize = image_size.DEFAULT,
    audio: options.Audio = None,
    like: options.Like = None,
    batch: options.Batch = 1,
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    shared: Annotated[int, typer.Option(help="Tokens at the start of each prompt that all requests share.", min=0)] = 0,
    train: Annotated[
        bool, typer.Option("--train", help="Explain one optimiser step of --batch sequences instead of serving.")
    ] = False,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="With --train: recompute activations.")] = False,
    sensitivity: Annotated[
        Path | None,
        typer.Option(help="JSON file with the rise in loss from quantising each layer alone (chipwise sensitivity)."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of this machine's runtime.", min=1)] = 1,
    every: Annotated[
        bool, typer.Option("--all", help="Also show small gains and changes whose gain is uncertain.")
    ] = False,
    other_chips: Annotated[bool, typer.Option("--other-chips", help="Also suggest other devices.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with a roofline plot and a waterfall chart.")] = None,
    train_tokens: options.TrainTokens = None,
    shape: options.Shape = None,
    value: options.Value = None,
    as_json: options.AsJson = False,
) -> None:
    """Explain where a model's time goes on a chip, how close it is to the chip's limits, and what changes would gain.

    A chip: chipwise explain meta-llama/Llama-2-7b-hf --device a100-sxm-80gb --prompt 32000

    This machine: chipwise explain spec.json --device here --prompt 64 --new 64

    Training: chipwise explain gpt2 --device a100-sxm-80gb --train --batch 12 --prompt 1024

    An ONNX file, measured here or predicted for a chip: chipwise explain model.onnx --device here --shape x=1,3,48,320

    A PyTorch module, or a function that returns one: chipwise explain package.module:build --shape x=1,3,224,224
    """
    model = answers.alike.named(model, like)
    if graph_files.explained(context, model, as_json=as_json) or explained(context, model, as_json=as_json):
        return
    if not train:
        refuse(context, "checkpoint", why="only applies with --train")
    else:
        refuse(context, "new", "kv", "shared", "images", "audio", why="only applies to serving, not to --train")
    device = completion.sized(device, memory)
    asked: dict[str, Any] = {"runtime": runtime, "weights": weights, "prompt": prompt, "new": new, "batch": batch}
    if images:
        asked |= {"images": images, "image_size": image_size.parse(size)}
    else:
        refuse(context, "size", why="needs --images, the number of images")
    asked["audio_s"] = audio
    if html is not None:
        require("plotly")
        check_output(html)
    found = api.explain(
        model, device=device, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp, shared=shared, train=train, checkpoint=checkpoint,
        sensitivity=sensitivity, threads=threads, every=every, other_chips=other_chips, **asked,
    )  # fmt: skip
    if as_json:
        json_of(quality.with_quality(answers.to_data(found), found.case.arch, train_tokens))
    else:
        _print(model, found, every=every)
        quality.print_quality(found.case.arch, train_tokens, advice=found.advice)
    if html is not None:
        write_output(html, answers.html.page(model, found))
        notices.print(f"wrote {html}")


def _print(model: str, found: answers.Explanation, *, every: bool) -> None:
    cost, question, arch = found.estimate, found.case.question, found.case.question.arch
    several = f"{cost.devices} x " if cost.devices > 1 else ""
    served = replace(cost, weights=question.weights).served_as
    short = f": {found.does_not_fit}" if found.does_not_fit else ""
    say(f"{model} on {several}{cost.device}, {served}{short}", bold=True)
    parameters = answers.parameters_said(arch.parameters(), arch.active_parameters())
    say(f"{found.case.asked}; parameters: {parameters}")
    say(f"{'hypothetical, as if it fitted: ' if short else ''}{_times(found)}; {cost.provenance}, 90 % intervals")
    say()
    for phase in found.phases:
        say(f"{phase.verdict[0].upper()}{phase.verdict[1:]}.", bold=True)
    for phase in found.phases:
        _print_phase(phase, found)
    held = ", ".join(f"{name} {units.show(size, 'bytes')}" for name, size in found.memory_bytes.items())
    of = f" of {units.show(found.capacity_bytes, 'bytes')}" if found.capacity_bytes else ""
    say()
    say(f"Memory: {units.show(cost.peak_memory_bytes, 'bytes')}{of}: {held}")
    for curve in found.saturation:
        if curve.saturation is not None:
            say(f"Saturation: at about {units.number(curve.saturation)} {curve.unit}")
    if found.shared is not None:
        shared, last = found.shared, len(found.shared.candidates) - 1
        say(
            f"Shared context: after {shared.context_tokens:,} shared tokens, {shared.candidates[last]} candidates of "
            f"{shared.own_tokens} tokens each cost "
            f"{units.number(shared.shared_s[last] / shared.shared_s[0])} times as much as one candidate "
            f"({units.number(shared.saving(last))} times as much without sharing as with it)"
        )
    if found.training is not None:
        say(f"note: {answers.checkpointing_note(found.training)} (--train explains it)")
    _print_advice(found.advice, every=every)
    say_notes(found.notes)


def _times(found: answers.Explanation) -> str:
    """Returns text with TTFT and TPOT and their intervals, or with the time of the single pass."""
    metrics, case = found.estimate.metrics, found.case
    names = [("ttft_p50", "TTFT"), ("tpot_p50", "TPOT")] if case.generates else [("ttft_p50", "pass")]
    names = [("step", "step")] if case.training else names
    known = [(label, metrics[name]) for name, label in names if name in metrics]
    times = [f"{label} {units.span(each.value, each.low, each.high, 'time')}" for label, each in known]
    if case.generates and (rate := metrics.get("decode_tokens_per_s")) is not None:
        times.append(f"decode {units.show(rate.value, 'rate')} each request")
    return ", ".join(times)


def _print_phase(phase: answers.PhaseAnswer, found: answers.Explanation) -> None:
    say()
    say(f"{found.case.title(phase.phase)}: {units.show(phase.seconds, 'time')}", bold=True)
    right, number = Column(right=True), units.number
    waterfall = Table(columns=[Column(), right, right, Column(drop=1), Column(prose=True)])
    longest = max(part.seconds for part in phase.parts)
    for part in phase.parts:
        bar = "█" * max(1, round(WIDTH * part.seconds / longest)) if part.seconds > 0 else ""
        share = units.show(part.seconds / phase.seconds, "share", digits=2)
        waterfall.add(part.name, units.show(part.seconds, "time"), share, bar, part.why)
    print_table(waterfall)
    say()
    heads = ("time", "share", "bound", "FLOP/B", "ridge", "of limit")
    drops = {"bound": 1, "FLOP/B": 2, "ridge": 3}
    columns = [Column(head=head, right=head != "bound", drop=drops.get(head, 0)) for head in heads]
    operators = Table(columns=[Column(head="operator"), *columns])
    for each in phase.operators:
        if each.share >= answers.SHOWN:
            operators.add(
                each.place + (f"  x{each.count}" if each.count > 1 else ""),
                units.show(each.seconds, "time"),
                units.show(each.share, "share", digits=2),
                each.bound.value,
                "" if each.intensity is None else number(each.intensity),
                "" if each.ridge is None else number(each.ridge),
                "" if each.reached is None else units.show(each.reached, "share", digits=2),
            )
    rest = [each for each in phase.operators if each.share < answers.SHOWN]
    if rest:
        share = units.show(sum(each.share for each in rest), "share", digits=2)
        seconds = units.show(sum(each.seconds for each in rest), "time")
        operators.add(f"{len(rest)} smaller ones", seconds, share, "", "", "", "")
    print_table(operators)


def _print_advice(advice: tuple[answers.Advice, ...], *, every: bool) -> None:
    # leading advice comes first, so it has the same numbers with --all
    shown = advice if every else answers.leading(advice)
    say()
    say("Advice" if shown else "Advice: none of the changes has a large and certain gain", bold=True)
    for number, each in enumerate(shown, start=1):
        proposal = each.proposal
        doubt = "" if each.sure else " (does not fit)" if not each.fits else " (uncertain)"
        say(f"{number:>2}. {proposal.title}", bold=True, hang=4)
        say(
            f"{answers.gain_text(each.headline)}: {answers.factor_text(each.headline)}{doubt}",
            indent=4,
        )
        for label, text in (
            ("also", answers.side_effects(each)),
            (proposal.touches, proposal.how),
            ("quality", proposal.quality),
            ("source", proposal.source),
        ):
            if text:
                say(f"{label}: {text}", indent=4)
    if not every:
        left = len(advice) - len(shown)
        say((f"{left} more, and " if left else "") + "changes whose gain is uncertain, with --all")

"""``chipwise explain``: why a model is slow on a chip, and what should change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chipwise.cli import quality

if TYPE_CHECKING:
    from chipwise.explaining.advice import Advice
    from chipwise.explaining.answer import Explanation, PhaseAnswer

WIDTH = 20  # characters of the longest bar


def command(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A Hugging Face id that is bundled, a config.json or its folder, or a spec file.")
    ],
    device: Annotated[str, typer.Option(help="A device of `chipwise devices`, a YAML file, or `here`.")] = "h100-sxm",
    runtime: Annotated[str | None, typer.Option(help="vllm, sglang, trtllm, torch-eager, …; onnxruntime here.")] = None,
    prompt: Annotated[int, typer.Option(help="Prompt tokens of a request.", min=1)] = 1024,
    new: Annotated[int, typer.Option(help="New tokens of a request.", min=1)] = 128,
    batch: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 1,
    weights: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, int8, int4, …; that of the checkpoint.")] = None,
    kv: Annotated[str | None, typer.Option(help="Number format of the KV cache; that of the activations.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallelism.", min=1)] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.", min=1)] = 1,
    ep: Annotated[int, typer.Option(help="Groups that a mixture's experts are dealt out to.", min=1)] = 1,
    dp: Annotated[int, typer.Option(help="Replicas of attention.", min=1)] = 1,
    shared: Annotated[int, typer.Option(help="Tokens of each prompt that all requests have in common.", min=0)] = 0,
    train: Annotated[bool, typer.Option("--train", help="One optimiser step of --batch sequences instead.")] = False,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="With --train: recompute activations.")] = False,
    sensitivity: Annotated[
        Path | None, typer.Option(help="JSON list: the loss that each layer alone costs in a narrow format.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of this machine's runtime.", min=1)] = 1,
    every: Annotated[bool, typer.Option("--all", help="Show advice too that is no sure gain.")] = False,
    apply: Annotated[int | None, typer.Option(help="Write the model as changed by advice number N.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Where --apply writes to.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with roofline, waterfall and curves.")] = None,
    train_tokens: Annotated[str | None, typer.Option(help=quality.HELP)] = None,
    measured: Annotated[bool, typer.Option("--measured", help="Profile it on this machine, node by node.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, in SI units.")] = False,
) -> None:
    """Explain where the time of a model goes on a chip, how far from the limit it is, and what each change would buy.

    A chip: chipwise explain meta-llama/Llama-2-7b-hf --device a100-sxm-80gb --prompt 32000

    This machine: chipwise explain spec.json --device here --prompt 64 --new 64

    Training: chipwise explain gpt2 --device a100-sxm-80gb --train --batch 12 --prompt 1024

    Advice: chipwise explain config.json --device l4 --apply 1 --out new-config.json
    """
    from chipwise import api
    from chipwise.cli.output import json_of, notices, refuse

    if not train:
        refuse(context, "checkpoint", why="is for --train")
    else:
        refuse(context, "new", "kv", "shared", why="is for serving, not for --train")
    if apply is None:
        refuse(context, "out", why="is where --apply N writes to")
    if measured:
        refuse(context, "apply", "html", "train", "train_tokens", "sensitivity", why="is not for --measured")
    asked: dict[str, Any] = {"weights": weights, "kv": kv, "tp": tp, "pp": pp, "ep": ep, "dp": dp}
    asked |= {"prompt": prompt, "new": new, "batch": batch} | ({"runtime": runtime} if runtime else {})
    asked |= ({"train": True, "checkpoint": checkpoint} if train else {}) | ({"shared": shared} if shared else {})
    asked |= {"sensitivity": sensitivity} if sensitivity else {}
    if measured:
        _measured(model, asked, threads, as_json=as_json)
        return
    if apply is not None and out is None:
        raise typer.BadParameter("--apply needs --out, the file that the changed model goes to")
    found = api.explain(model, device=device, threads=threads, every=every, **asked)
    if as_json:
        from chipwise.explaining.data import to_data

        json_of(quality.with_quality(to_data(found), found.case.arch, train_tokens))
    else:
        _print(model, found)
        quality.print_quality(found.case.arch, train_tokens, advice=found.advice)
    if html is not None:
        from chipwise.core.files import write_atomic
        from chipwise.explaining.page import page

        write_atomic(html, page(model, found))
        notices.print(f"wrote {html}")
    if apply is not None and out is not None:
        notices.print(_apply(found, apply, out, model))


def _apply(found: Explanation, number: int, out: Path, model: str) -> str:
    from chipwise.core.errors import InputError
    from chipwise.explaining.apply import apply

    if number > len(found.advice):
        raise InputError(f"--apply {number}: there are {len(found.advice)} pieces of advice; --all shows more")
    advice = found.advice[number - 1]
    kind = apply(found.case, advice, out, original=model)
    return f"wrote {out} ({kind}): {advice.proposal.title}"


def _print(model: str, found: Explanation) -> None:
    from chipwise.cli.output import console
    from chipwise.core import units

    cost = found.estimate
    several = f"{cost.devices} x " if cost.devices > 1 else ""
    question = found.case.question
    weights = f"weights in {question.weights}"
    console.print(f"[bold]{model}[/] on {several}{cost.device}, {cost.runtime}, {weights}: {cost.provenance}")
    console.print(f"{found.case.asked}\n")
    for phase in found.phases:
        console.print(f"[bold]{phase.verdict[0].upper()}{phase.verdict[1:]}.[/]")
    for phase in found.phases:
        _print_phase(phase, found)
    held = ", ".join(f"{name} {units.show(size, 'bytes')}" for name, size in found.memory_bytes.items())
    of = f" of {units.show(found.capacity_bytes, 'bytes')}" if found.capacity_bytes else ""
    console.print(f"\n[bold]Memory[/] {units.show(cost.peak_memory_bytes, 'bytes')}{of}: {held}")
    for curve in found.saturation:
        if curve.saturation is not None:
            console.print(f"[bold]Saturation[/] at about {curve.saturation:,.0f} {curve.unit}")
    if found.shared is not None:
        shared, last = found.shared, len(found.shared.candidates) - 1
        console.print(
            f"[bold]Shared context[/] {shared.candidates[last]} candidates of {shared.own_tokens} tokens over these "
            f"{shared.context_tokens:,} cost {shared.shared_s[last] / shared.shared_s[0]:.1f} times one "
            f"({shared.saving(last):.1f} times less than apart)"
        )
    if found.training is not None:
        from chipwise.explaining.checkpointing import sentence

        console.print(f"note: {sentence(found.training)} (--train explains it)")
    _print_advice(found.advice)
    for note in found.notes:
        console.print(f"note: {note}")


def _print_phase(phase: PhaseAnswer, found: Explanation) -> None:
    from rich.table import Table

    from chipwise.cli.output import console
    from chipwise.core import units
    from chipwise.explaining.answer import SHOWN

    used = ", ".join(
        f"{name} {units.show(value, 'share')}" for name, value in (("MFU", phase.mfu), ("MBU", phase.mbu)) if value
    )
    console.print(
        f"\n[bold]{found.case.title(phase.phase)}[/] {units.show(phase.seconds, 'time')}{'  ' + used if used else ''}"
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    longest = max(part.seconds for part in phase.parts)
    for part in phase.parts:
        bar = "█" * max(1, round(WIDTH * part.seconds / longest)) if part.seconds > 0 else ""
        share = units.show(part.seconds / phase.seconds, "share")
        style = "" if part.ideal else "yellow"
        table.add_row(
            part.name, units.show(part.seconds, "time"), share, f"[{style}]{bar}[/]" if style else bar, part.why
        )
    console.print(table)
    table = Table(box=None, pad_edge=False)
    for head in ("operator", "time", "share", "bound", "FLOP/B", "ridge", "of limit"):
        table.add_column(head, justify="left" if head in ("operator", "bound") else "right", no_wrap=head != "operator")
    shown = [each for each in phase.operators if each.share >= SHOWN]
    for each in shown:
        table.add_row(
            each.place + (f"  x{each.count}" if each.count > 1 else ""),
            units.show(each.seconds, "time"),
            units.show(each.share, "share"),
            each.bound.value,
            "" if each.intensity is None else f"{each.intensity:.3g}",
            "" if each.ridge is None else f"{each.ridge:.3g}",
            "" if each.reached is None else units.show(each.reached, "share"),
        )
    rest = [each for each in phase.operators if each.share < SHOWN]
    if rest:
        seconds = sum(each.seconds for each in rest)
        share = units.show(sum(each.share for each in rest), "share")
        table.add_row(f"{len(rest)} smaller ones", units.show(seconds, "time"), share, "", "", "", "")
    console.print(table)


def _print_advice(advice: tuple[Advice, ...]) -> None:
    from chipwise.cli.output import console
    from chipwise.explaining.words import gain_text, metric_word

    console.print(f"\n[bold]Advice[/]{'' if advice else ': nothing that is surely a gain; --all shows what was tried'}")
    for number, each in enumerate(advice, start=1):
        gain, proposal = each.headline, each.proposal
        doubt = "" if each.sure else "  (does not fit)" if not each.fits else "  (not sure)"
        console.print(
            f"{number:>2}. [bold]{proposal.title}[/]: {gain_text(gain)}, {gain.ratio.value:.2f} times better "
            f"({gain.ratio.low:.2f} to {gain.ratio.high:.2f}){doubt}",
            highlight=False,
        )
        others = [
            f"{metric_word(g.metric)} {g.ratio.value:.2f}"
            for g in each.gains
            if g.metric != gain.metric and abs(g.ratio.value - 1) > 0.01
        ]
        console.print(f"    touches {proposal.touches}; {proposal.how}", highlight=False, markup=False)
        if others:
            console.print(f"    times better besides: {', '.join(others)}", highlight=False)
        if proposal.quality:
            console.print(f"    quality: {proposal.quality}", highlight=False, markup=False)
        if proposal.source:
            console.print(f"    source: {proposal.source}", highlight=False, markup=False)


def _measured(model: str, asked: dict[str, Any], threads: int, *, as_json: bool) -> None:
    from rich.table import Table

    from chipwise import api
    from chipwise.cli.output import console, json_of
    from chipwise.core import units

    found = api.explain_measured(model, threads=threads, **asked)
    if as_json:
        json_of(found)
        return
    for phase in found.phases:
        console.print(
            f"[bold]{phase.phase}[/]: {units.show(phase.measured_s, 'time')} measured with the profiler on, "
            f"{units.show(phase.predicted_s, 'time')} predicted"
        )
        table = Table(box=None, pad_edge=False)
        for head in ("operator", "predicted", "measured", "measured / predicted", "nodes"):
            table.add_column(head, justify="left" if head == "operator" else "right")
        for row in phase.rows:
            ratio = f"{row.measured_s / row.predicted_s:.2f}" if row.predicted_s and row.measured_s else ""
            seen = units.show(row.measured_s, "time") if row.measured_s else "none"
            table.add_row(row.operator, units.show(row.predicted_s, "time"), seen, ratio, str(row.nodes))
        console.print(table)

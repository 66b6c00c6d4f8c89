"""``chipwise quantize``: the best number formats of a model on this machine, by measured time and loss."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options, stages
from chipwise.cli.export import printed
from chipwise.cli.output import json_of, print_table, put, say, say_notes, stoppable
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A .onnx file, a PyTorch module as package.module:build, a .gguf file or a Hugging Face folder of a "
            "decoder."
        ),
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            help="ONNX: a .npz file with samples of each input along a first axis, or a folder of such files. GGUF: a "
            "text file or a folder of .txt files (repeat the option). With --method also a run file."
        ),
    ],
    loss: Annotated[
        str, typer.Option(help="Limit on the loss, as '<= 1 %': relative error or, with --metric, lost share of score.")
    ] = "<= 1 %",
    metric: Annotated[
        str | None,
        typer.Option(help="A function score(outputs, data) of a Python file, as FILE.py:score; higher is better."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Size of an input's open axes in the new file, or a module's input shape: x=1,3,224,224 (repeatable)."
        ),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(help="Fixed value of an input, as sr=16000; the written file ignores that input (repeatable)."),
    ] = None,
    tpot: Annotated[
        str | None, typer.Option(help="GGUF: limit on a decode step's time, as '<= 8 ms'. Default: that of Q4_K_M.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="GGUF: limit on the weights' memory, as '<= 400 MB'. Default: Q4_K_M's size.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="GGUF: tokens whose KV cache counts as memory; chooses its format too. Default: 0.", min=64),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--format", help="GGUF: one format for all matrices, such as q4_k. With --method: int8 or int4."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Write a Hugging Face folder, a winner or a .gguf file as ONNX in one format (int4 unless given), "
            "rounded by nearest, searched, gptq, learned, or auto (lowest loss on calibration data)."
        ),
    ] = None,
    cpu_seconds: options.LearningSeconds = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="GGUF: predict times on this chip from its data sheet. Default: measure on this machine.",
            autocompletion=completion.devices,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="GGUF: print the formats and their predicted cost; write no file.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="File, or folder with --method. Default: NAME.quantised.onnx, NAME.mix.gguf, NAME-onnx."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the runtime.", min=1)] = 1,
    minutes: Annotated[
        float, typer.Option(help="ONNX: maximum minutes to change single operators once formats are chosen.", min=0)
    ] = 10.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed for splitting the data.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, without progress.")] = False,
) -> None:
    """Choose a number format for each operator or matrix of a model by measured time and measured loss.

    ONNX: writes the fastest file within a limit on the loss. GGUF: writes the mix of llama.cpp's formats that changes
    the model least within limits on time and memory. Unless it changes the model clearly less than the
    best of llama.cpp's own mixes (Q4_K_M, …), the latter is written instead.

    chipwise quantize model.onnx --data inputs.npz --loss "<= 1 %"

    chipwise quantize package.module:build --shape x=1,3,224,224 --data inputs.npz

    chipwise quantize ./smollm2 --data text/ --tpot "<= 8 ms"

    chipwise quantize ./minilm --data notes.txt --method learned
    """
    with stoppable():
        found = api.quantize(
            model,
            data=data[0] if len(data) == 1 else data,
            loss=loss,
            metric=metric,
            shapes=answers.parse_shapes(shape or ()),
            values=answers.parse_values(value or ()),
            tpot=tpot,
            memory=memory,
            context=context,
            weights=weights,
            method=method,
            cpu_seconds=cpu_seconds,
            device=device,
            dry_run=dry_run,
            out=out,
            threads=threads,
            minutes=minutes,
            resume=resume,
            seed=seed,
            on_progress=stages.silent if as_json else stages.Progress(),
        )
    if as_json:
        json_of(found.to_dict())
    elif isinstance(found, answers.QuantisedGguf):
        print_gguf(found)
    elif isinstance(found, api.Exported):
        printed(found)
    else:
        _print(found)


def _print(found: answers.QuantisedFile) -> None:
    table = Table(
        title=f"{found.source} · timed in turns with the original; loss on the {found.choosing} samples used to choose",
        columns=[Column(head="formats", prose=True), *numeric("time", "loss", "at most (95 %)", "size")],
    )
    for item in found.tried:
        shown = ("–" if x is None else units.show(x, "share") for x in (item.ratio, item.loss, item.upper))
        size = "–" if item.size_bytes is None else units.show(item.size_bytes, "bytes")
        table.add(item.recipe + (f": {item.error}" if item.error else ""), *shown, size)
    print_table(table)
    say_notes(found.notes)
    kind = "CPU time" if found.threads == 1 else "time"
    low, high = (units.show(x, "share") for x in (found.ratio_low, found.ratio_high))
    say(
        f"measured: {units.show(found.ratio, 'share')} of the original's {kind} ({low} to {high} in {found.rounds} "
        f"rounds); the original takes {units.show(found.original_s, 'time')}, and repeated timings of it agree "
        f"within {units.show(found.repeatability, 'share')}"
    )
    limit = f"limit {units.show(found.limit, 'share')}"
    if found.file is None:
        say(
            f"No file within the loss limit ({found.unit}, {limit}) is faster than the original; nothing was written.",
            bold=True,
        )
        return
    scored = f"on the {found.scored} samples not used to choose"
    say(f"loss ({found.unit}): {units.show(found.loss or 0.0, 'share')} {scored}; {limit}")
    say(f"formats: {found.formats}")
    put(
        f"file: {found.file} ({units.show(found.size_bytes, 'bytes')}, was {units.show(found.original_bytes, 'bytes')})"
    )


def print_gguf(found: answers.QuantisedGguf) -> None:
    """Prints the format chosen for each matrix, with its predicted and measured cost."""
    heads = ("size", "time of a token", "measured", "prefill", "measured", "divergence", "measured")
    table = Table(
        title=f"{found.source} · predicted, then measured; divergence from the source in nats per token, on "
        f"{found.held_tokens:,} held-out tokens",
        columns=[Column(head="mix", prose=True), *numeric(*heads)],
    )
    for item in (found.chosen, *found.stock):
        times = (item.predicted_s, item.step_s, item.predicted_prefill_s, item.prefill_s)
        table.add(
            item.name
            + ("" if item.cache == "f16" else f", KV {item.cache}")
            + ("" if item.keeps else " (beyond the limits)"),
            units.show(item.size_bytes, "bytes"),
            *("–" if value is None else units.show(value, "time") for value in times),
            f"{item.predicted_loss:.4f}",
            "–" if item.loss is None else f"{item.loss:.4f} ± {item.loss_error:.4f}",
        )
    print_table(table)
    say(found.plan)
    measured = [item for item in (found.chosen, *found.stock) if item.loss is not None]
    for item in measured if len(found.chosen.domains) > 1 else ():
        say(f"{item.name}: " + ", ".join(f"{name} {loss:.4f}" for name, loss in item.domains.items()))
    say_notes(found.notes)
    if found.repeatability is not None:
        say(f"repeatability: timings of one file differ by {units.show(found.repeatability, 'share', digits=2)}")
    if found.original_loss is not None:
        say(f"the source's own loss on the held-out text: {found.original_loss:.2f} nats per token")
    for part, kinds in layers_of(found.formats):
        say(f"  {part}: {kinds}")
    say(f"verdict: {found.verdict}", bold=True)
    if found.file is not None:
        put(f"file: {found.file}")


def layers_of(formats: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lists the formats of each kind of matrix, layer by layer; equal formats of consecutive layers are joined.

    >>> layers_of({"blk.0.attn_q.weight": "Q4_K", "blk.1.attn_q.weight": "Q4_K", "output.weight": "Q6_K"})
    [('attn_q', 'Q4_K ×2'), ('output', 'Q6_K')]
    """
    kinds: dict[str, list[str]] = {}
    for name, kind in formats.items():
        kinds.setdefault(name.split(".")[-2], []).append(kind)
    runs = {part: [(kind, len(list(group))) for kind, group in itertools.groupby(own)] for part, own in kinds.items()}
    return [
        (part, ", ".join(kind if count == 1 else f"{kind} ×{count}" for kind, count in each))
        for part, each in runs.items()
    ]

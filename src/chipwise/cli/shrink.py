"""``chipwise shrink``: prunes a pretrained model until it meets limits on this machine or on another chip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options, quantize, stages
from chipwise.cli.output import json_of, print_table, put, refuse, say, stoppable
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric


def command(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face folder: BERT-style encoder or Llama-style decoder with tokenizer, image classifier "
            "(ViT), or a winner. Or a .gguf file."
        ),
    ],
    latency: Annotated[
        str, typer.Option(help="Limit on a request's latency: a share of the original's, or a time such as '3 ms'.")
    ] = "60 %",
    memory: Annotated[
        str | None,
        typer.Option(help="Limit on the weights' memory: a share of the original's, or a size such as '40 MB'."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="exact (score each block, solve for the best cut), uniform (the same sizes in every layer) or "
            "truncate (keep the first layers)."
        ),
    ] = "exact",
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A text source, text files or globs (repeat the option), or a run file, whose data are used. Default: "
            "the data of a winner's run, else medical-definitions."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Prompt tokens of a request.", min=1)] = 32,
    new: Annotated[int, typer.Option(help="New tokens of a request (decoders).", min=1)] = 16,
    weights: Annotated[str, typer.Option(help="Weight format for serving: fp32, int8, int4.")] = "fp32",
    rounding: Annotated[
        str,
        typer.Option(
            help="How int8 and int4 are rounded: nearest, searched, gptq, learned, or auto (lowest loss on held-out "
            "data)."
        ),
    ] = "auto",
    cpu_seconds: options.LearningSeconds = None,
    steps: Annotated[int, typer.Option(help="Distillation steps after the cut.", min=0)] = 300,
    rate: Annotated[float, typer.Option(help="Peak learning rate of distillation.")] = 5e-4,
    device: Annotated[
        str | None,
        typer.Option(
            help="Chip on which the latency limit must hold; times are predicted from its data sheet. Default: this "
            "machine, where times are measured.",
            autocompletion=completion.devices,
        ),
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="Runtime on that chip. Default: the chip's usual one.")] = None,
    tpot: Annotated[
        str | None,
        typer.Option(help="Limit on a GGUF file's decode step, such as '<= 8 ms'; matrices get formats to meet it."),
    ] = None,
    to: Annotated[str | None, typer.Option(help="gguf: a GGUF file, formats chosen as by chipwise quantize.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="GGUF: print the formats and their predicted cost; write no file.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Output folder, or GGUF file. Default: runs/shrink-<name>, NAME.mix.gguf.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, without progress.")] = False,
) -> None:
    """Cut a pretrained model to limits, restore its quality by distillation, export it and measure it.

    Can be resumed after Ctrl-C or a kill. Writes a Hugging Face folder and a model.onnx next to it.

    Text: chipwise shrink path/to/minilm --latency "60 %" --data 'notes/*.txt'

    Images, speech, ranking: chipwise shrink runs/vision/winner --data vision.yaml --device snapdragon-8-elite

    Formats by matrix for llama.cpp: chipwise shrink SmolLM2.gguf --tpot "<= 8 ms"
    """
    as_gguf = to is not None or tpot is not None or folder.suffix == ".gguf"
    if as_gguf:
        refuse(
            context, "latency", "method", "tokens", "new", "weights", "rounding", "cpu_seconds", "steps", "rate",
            "runtime", why="does not apply to GGUF; its limits are --tpot and --memory",
        )  # fmt: skip
    elif answers.run_of(folder, data) is not None:
        refuse(
            context,
            "tokens",
            "new",
            why="only applies to text models; a run file states its workload",
        )
    with stoppable():
        found = api.shrink(
            folder,
            latency=latency,
            memory=memory,
            method=method,  # type: ignore[arg-type]
            data=data or ["medical-definitions"],
            prompt=tokens,
            new=new,
            weights=weights,
            rounding=rounding,
            cpu_seconds=cpu_seconds,
            steps=steps,
            rate=rate,
            device=device,
            runtime=runtime,
            tpot=tpot,
            to=to,
            dry_run=dry_run,
            out=out,
            resume=resume,
            seed=seed,
            on_progress=stages.silent if as_json else stages.Progress(),
        )
    if isinstance(found, answers.QuantisedGguf):
        json_of(found.to_dict()) if as_json else quantize.print_gguf(found)
    elif as_json:
        json_of(found.summary())
    else:
        _print(found)


def _print(found: answers.Shrunk) -> None:
    columns = [Column(prose=True), *numeric("original", "cut", "share")]
    table = Table(title=f"{found.arch.name} · {found.method}", columns=columns)
    share = units.show(found.parameters / found.original_parameters, "share", digits=2)
    table.add("parameters", f"{found.original_parameters:,}", f"{found.parameters:,}", share)
    if found.request_s is not None and found.ratio is not None:
        how = "measured alternately" if found.estimates is None else f"predicted on {found.estimates[0].device}"
        both = (units.show(each, "time") for each in found.request_s)
        table.add(f"request P50, {how}", *both, units.show(found.ratio, "share"))
    if found.score is None or found.original_score is None:
        table.add(found.held_out, "0", f"{found.loss_after:.4f}", "")
    else:
        table.add(f"{found.score.metric}, test data (95 %)", found.original_score.shown, found.score.shown, "")
    print_table(table)
    heads, neurons = (", ".join(map(str, sizes)) for sizes in (found.sizes.heads, found.sizes.neurons))
    say(f"KV heads of each layer: {heads}; neurons: {neurons}")
    say(
        f"{found.held_out}: {found.shown(found.loss_before)} after the cut, {found.shown(found.loss_after)} after "
        f"distillation"
    )
    if found.quantiser is not None:
        say(f"rounded by: {found.quantiser.text()}")
    if found.latency is not None and not found.latency.clean:
        say(f"machine not quiet: {'; '.join(found.latency.reasons)}; trust the ratio rather than the times")
    put(f"model: {found.folder}")

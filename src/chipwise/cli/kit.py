"""``chipwise kit``: packs files to measure on another device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options, show
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table


def command(
    source: Annotated[
        list[str],
        typer.Argument(
            help="A run's folder, or a model: a winner's folder, a .onnx or .gguf file, a PyTorch module as "
            "package.module:build, a config, a spec, a known name. You can give several .onnx files and modules."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: RUN/kit, or kit-NAME.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Name of the device: one with a data sheet (apple-m4), or any other. Default: the run's target."
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="onnxruntime or llama.cpp. Default: the run's, else the one that reads the model's file."),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(help="Maximum number of designs from a Pareto front, besides winner and reference design.", min=0),
    ] = 6,
    threads: options.Threads = None,
    batch: options.Requests = None,
    prompt: options.PromptTimed = None,
    new: options.NewTimed = None,
    weights: options.WeightsBuilt = None,
    shape: options.Shape = None,
    value: options.Value = None,
    inputs: options.Inputs = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was packed as JSON.")] = False,
) -> None:
    """Pack models for another device: exported files, one Python script, instructions.

    Copy the folder to the device and run there: python3 kit.py. It needs only Python and the runtime. Then import the
    results here: chipwise measurements import kit-results.json. A run uses them when you continue it with --resume.
    """
    with show.waiting("packing", quiet=as_json):
        packed = api.kit(
            source[0] if len(source) == 1 else source,
            out=out,
            device=device,
            runtime=runtime,
            candidates=candidates,
            threads=threads,
            batch=batch,
            prompt=prompt,
            new=new,
            weights=weights,
            shapes=answers.parse_shapes(shape) if shape else None,
            values=answers.parse_values(value) if value else None,
            inputs=inputs,
        )
    if as_json:
        show.json_of({"folder": str(packed.folder), "kit": packed.kit.to_data(), "notes": packed.notes})
        return
    heads = ("file", "trial", "role", "runtime", "weights", "size")
    table = Table(title=packed.headline(), columns=[Column(head=head, right=head == "size") for head in heads])
    for item in packed.kit.models:
        trial = "–" if item.trial is None else str(item.trial)
        table.add(item.file, trial, item.role, item.runtime, item.weights, units.show(item.bytes, "bytes"))
    print_table(table)
    for note in packed.notes:
        say(note)
    say(f"Copy {packed.folder} to the device and run there: python3 kit.py; its README.md says what is needed.")

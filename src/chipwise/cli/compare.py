"""``chipwise compare``: compares models on several chips."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, graph_files, image_size, options
from chipwise.cli.estimate import decoded, energy_of, million_tokens, read_by
from chipwise.cli.output import json_of, notices, print_table, refuse, say, say_notes
from chipwise.cli.whole_runs import compared
from chipwise.core import units
from chipwise.core.digest import plain
from chipwise.core.files import write_output
from chipwise.core.layout import Column, Table, numeric

_OF_MODELS = ("device", "runtime", "prompt", "new", "images", "audio", "batch", "weights", "kv", "tp")


def command(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(help="Models, as `chipwise estimate` takes them.")],
    device: Annotated[
        str,
        typer.Option(
            help="Comma-separated devices, or `all`; `here` is this machine.", autocompletion=completion.devices
        ),
    ] = "all",
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
    html: Annotated[Path | None, typer.Option(help="For two runs: write a page that plots both Pareto fronts.")] = None,
    shape: options.Shape = None,
    value: options.Value = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare the costs of models on several chips, and say what bounds each model; or compare two search runs.

    chipwise compare meta-llama/Llama-2-7b-hf meta-llama/Llama-3.1-8B --device a100-sxm-80gb,l4 --prompt 32000

    ONNX files or PyTorch modules: chipwise compare a.onnx nets.py:build --device l4,here --shape x=1,3,224,224

    Two search runs are compared by limits, predictions, measurements, designs and fronts:

    chipwise compare runs/a runs/b --html both.html
    """
    if _runs(context, models, html=html, as_json=as_json):
        return
    devices = None if device == "all" else [name.strip() for name in device.split(",") if name.strip()]
    if devices == []:
        raise typer.BadParameter("--device is empty; give devices, such as --device a100-sxm-80gb,l4, or --device all")
    if graph_files.compared(context, models, devices, as_json=as_json):
        return
    if compared(context, models, devices, as_json=as_json):
        return
    found = api.compare(
        models, devices=devices, runtime=runtime, prompt=prompt, new=new, batch=batch, weights=weights, kv=kv, tp=tp,
        images=images, image_size=image_size.parse(size), audio_s=audio, like=like,
    )  # fmt: skip
    json_of(_data(found)) if as_json else _print(found)


def _runs(context: typer.Context, names: list[str], *, html: Path | None, as_json: bool) -> bool:
    """Compares two runs; returns False if none of the arguments is a run's folder.

    Raises:
        typer.BadParameter: There is only one run, more than two, a run together with a model, or an option that only
        applies to models.
    """
    runs = [name for name in names if Path(name).is_dir() and answers.holds_run(Path(name))]
    if not runs:
        if html is not None:
            raise typer.BadParameter(
                "--html writes a page that compares two runs; name two folders such as runs/a runs/b"
            )
        return False
    if others := [name for name in names if name not in runs]:
        raise typer.BadParameter(
            f"{runs[0]} is a run and {others[0]} is not; compare two runs, or two models "
            f"(the run's model is {runs[0]}/winner)"
        )
    if len(runs) != 2:
        count = "one run" if len(runs) == 1 else f"{len(runs)} runs"
        raise typer.BadParameter(f"{count} named, but two are needed for a comparison: chipwise compare runs/a runs/b")
    refuse(context, *_OF_MODELS, why="only applies to models; for runs, the run file states it")

    found = answers.compare_runs(*runs)
    if html is not None:
        write_output(html, answers.two_runs.page(found))
    if as_json:
        json_of(answers.two_runs.to_data(found))
        return True
    for table in answers.two_runs.tables(found):
        print_table(table)
    say_notes(answers.two_runs.notes(found))
    if html is not None:
        notices.print(f"wrote {html}")
    return True


def _data(found: answers.Comparison) -> dict[str, object]:
    cells = [
        {
            "model": cell.model,
            "device": cell.device,
            "problem": cell.problem,
            "note": cell.note,
            **(
                {
                    "metrics": plain(cell.estimate.metrics),
                    "peak_memory_bytes": cell.estimate.peak_memory_bytes,
                    "parameters": cell.estimate.parameters,
                    "active_parameters": cell.estimate.active_parameters,
                }
                if cell.estimate
                else {}
            ),
        }
        for cell in found.cells
    ]
    return {"models": found.models, "devices": found.devices, "cells": cells, "winners": plain(found.winners)}


def _print(found: answers.Comparison) -> None:
    costs = [cell.estimate for cell in found.cells if cell.estimate is not None]
    each = next((name for cost in costs if (name := read_by(cost)) != "token"), "token")
    heads = ("TTFT", "TPOT", "tok/s each", f"{each}s/s", (f"energy/{each}", 3))
    columns = numeric(*heads, ("$/M in", 2), "$/M out", ("memory", 1))
    more = [Column(head="bound", drop=2), Column(head="weights", drop=1)]
    table = Table(columns=[Column(head="model"), *columns, *more])
    problems = []
    for device in found.devices:
        cells = [found.at(model, device) for model in found.models]
        costs = [cell.estimate for cell in cells if cell.estimate]
        served, runtimes = {cost.served_as for cost in costs}, {cost.runtime for cost in costs}
        alike = len(served) == 1
        named = served if alike else runtimes
        table.rows.append(f"{device}: {named.pop()}" if len(named) == 1 else device)
        for cell in cells:
            if cell.estimate is None:
                table.add(f"  {cell.model}", *["–"] * len(columns), "", "")
                problems.append(f"{cell.model} on {device}: {cell.problem}")
                continue
            cost, values = cell.estimate, cell.estimate.metrics
            energy = energy_of(cost)
            table.add(
                f"  {cell.model}",
                units.show(cost.ttft_s, "time"),
                units.show(cost.tpot_s, "time") if cell.generates else "",
                decoded(cost) if cell.generates else "",
                units.number(values["throughput"].value),
                units.show(energy.value, "energy") if energy else "–",
                *million_tokens(cost),
                units.show(cost.peak_memory_bytes, "bytes"),
                cost.bound.value if cost.bound else "",
                "" if alike else cost.weights,
            )
    print_table(table)
    counted = {cell.model: cell.estimate.parameters_said for cell in found.cells if cell.estimate is not None}
    if said := "; ".join(f"{model} {size}" for model, size in counted.items() if size):
        say(f"parameters: {said}")
    for problem in problems:
        say(problem)
    for cell in found.cells:
        if cell.note:
            say(f"{cell.model} on {cell.device}: {cell.note}")
    for winner in found.winners:
        say(f"{winner.device}, {winner.metric.partition('_')[0].upper()}: {_winner(winner)}")


def _winner(winner: answers.Winner) -> str:
    if winner.times_better is None:
        return f"{winner.model}; {winner.why}"
    doubt = "" if winner.sure else " (their intervals overlap)"
    return f"{winner.model}, {units.number(winner.times_better)}x faster than the next model{doubt}: {winner.why}"

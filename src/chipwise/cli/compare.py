"""``chipwise compare``: models side by side on several chips, and who wins where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from chipwise.explaining.compare import Comparison


def command(
    models: Annotated[list[str], typer.Argument(help="Models, as `chipwise estimate` takes them.")],
    device: Annotated[str, typer.Option(help="Devices, with commas between, or `all`.")] = "all",
    runtime: Annotated[str, typer.Option(help="vllm, sglang, trtllm, torch-eager, …")] = "vllm",
    prompt: Annotated[int, typer.Option(help="Prompt tokens of a request.", min=1)] = 1024,
    new: Annotated[int, typer.Option(help="New tokens of a request.", min=1)] = 128,
    batch: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 1,
    weights: Annotated[str | None, typer.Option(help="Format of the matrices; that of each checkpoint.")] = None,
    kv: Annotated[str | None, typer.Option(help="Number format of the KV cache.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallelism.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON, in SI units.")] = False,
) -> None:
    """Compare what models cost on several chips, and say which bound decides.

    chipwise compare meta-llama/Llama-2-7b-hf meta-llama/Llama-3.1-8B --device a100-sxm-80gb,l4 --prompt 32000
    """
    from chipwise import api
    from chipwise.cli.output import json_of

    devices = None if device == "all" else [name.strip() for name in device.split(",") if name.strip()]
    if devices == []:
        raise typer.BadParameter("--device names none")
    found = api.compare(
        models, devices=devices, runtime=runtime, prompt=prompt, new=new, batch=batch, weights=weights, kv=kv, tp=tp
    )
    json_of(_data(found)) if as_json else _print(found)


def _data(found: Comparison) -> dict[str, object]:
    from chipwise.core.digest import plain

    cells = [
        {
            "model": cell.model,
            "device": cell.device,
            "problem": cell.problem,
            **(
                {"metrics": plain(cell.estimate.metrics), "peak_memory_bytes": cell.estimate.peak_memory_bytes}
                if cell.estimate
                else {}
            ),
        }
        for cell in found.cells
    ]
    return {"models": found.models, "devices": found.devices, "cells": cells, "winners": plain(found.winners)}


def _print(found: Comparison) -> None:
    from rich.table import Table

    from chipwise.cli.output import console, print_whole
    from chipwise.core import units

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("device, model", "TTFT", "TPOT", "tok/s", "J/token", "$/1,000", "memory", "bound"):
        left = name in ("device, model", "bound")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "device, model")
    problems = []
    for device in found.devices:
        table.add_row(f"[bold]{device}[/]")
        for model in found.models:
            cell = found.at(model, device)
            if cell.estimate is None:
                table.add_row(f" {model}", *["–"] * 6)
                problems.append(f"{model} on {device}: {cell.problem}")
                continue
            cost, values = cell.estimate, cell.estimate.metrics
            energy, price = values.get("joules_per_token"), values.get("usd_per_1k_tokens")
            table.add_row(
                f" {model}",
                units.show(cost.ttft_s, "time"),
                units.show(cost.tpot_s, "time") if cell.generates else "",
                f"{values['throughput'].value:.3g}",
                units.show(energy.value, "energy") if energy else "–",
                f"{price.value:.3g}" if price else "–",
                units.show(cost.peak_memory_bytes, "bytes"),
                cost.bound.value if cost.bound else "",
            )
    print_whole(table)
    for problem in problems:
        console.print(problem, highlight=False, markup=False)
    for winner in found.winners:
        times = "" if winner.times_better is None else f", {winner.times_better:.2f} times better than the next"
        doubt = "" if winner.sure or winner.times_better is None else " (intervals meet)"
        label = {"ttft_p50": "TTFT", "tpot_p50": "TPOT"}[winner.metric]
        console.print(f"{winner.device}, {label}: [bold]{winner.model}[/]{times}{doubt}; {winner.why}", highlight=False)

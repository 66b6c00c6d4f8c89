"""``chipwise measure``: TTFT, TPOT and memory of any model on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A winner's folder, a Hugging Face folder or config.json, a spec, a known name, a .onnx or .gguf file."
        ),
    ],
    runtime: Annotated[
        str | None, typer.Option(help="The runtime to measure in; llama.cpp for .gguf, else onnxruntime.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the runtime; the run's own for a winner, else 1.", min=1)
    ] = None,
    prompt: Annotated[
        int | None, typer.Option(help="Prompt tokens; the run's own for a winner, else 64.", min=1)
    ] = None,
    new: Annotated[int | None, typer.Option(help="New tokens; the run's own for a winner, else 64.", min=1)] = None,
    weights: Annotated[str, typer.Option(help="Weight format where the model is built: fp32, int8, int4.")] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurement as JSON, every sample kept.")] = False,
) -> None:
    """Measure a model here: TTFT and TPOT at P50, P95, P99, peak memory of a fresh process, and whether to trust it.

    Models without weights (specs, configs, names) are measured with random ones.
    """
    from chipwise import api
    from chipwise.cli import show

    with show.waiting("measuring", quiet=as_json):
        outcome = api.measure(model, runtime=runtime, threads=threads, prompt=prompt, new=new, weights=weights)
    if as_json:
        show.json_of(outcome)
    else:
        show.measurement(outcome)

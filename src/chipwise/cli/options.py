"""Options that several commands have, with one help text each."""

from __future__ import annotations

from typing import Annotated

import typer

from chipwise.cli import completion, image_size, quality

MODEL = typer.Argument(
    help="A model of `chipwise models`, a config.json or its folder, or a spec file.",
    autocompletion=completion.models,
)
Model = Annotated[str, MODEL]
Device = Annotated[
    str,
    typer.Option(
        help="A device of `chipwise devices` (or a part of it: apple-m3-max:cpu), a YAML file, or `here`.",
        autocompletion=completion.devices,
    ),
]
Memory = Annotated[str | None, typer.Option(help=completion.MEMORY)]
Runtime = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.runtimes, help="vllm, sglang, trtllm, llama.cpp, … Default: what suits the chip."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="bf16, fp8, nvfp4, int4, q4_k_m, …; own: the checkpoint's. Default: what suits the chip."),
]
Kv = Annotated[str | None, typer.Option(help="KV-cache dtype. Default: same as the activations.")]
Prompt = Annotated[int, typer.Option(help="Prompt tokens of a request.", min=1)]
New = Annotated[int, typer.Option(help="New tokens of a request.", min=1)]
Batch = Annotated[int, typer.Option(help="Requests in flight.", min=1)]
Images = Annotated[int, typer.Option(help=image_size.IMAGES, min=0)]
ImageSize = Annotated[str, typer.Option("--image-size", help=image_size.SIZE)]
Audio = Annotated[float | None, typer.Option(help=image_size.AUDIO)]
Like = Annotated[str | None, typer.Option(help=completion.LIKE)]
Tp = Annotated[int, typer.Option(help="Tensor-parallel degree.", min=1)]
Pp = Annotated[int, typer.Option(help="Pipeline-parallel degree.", min=1)]
Ep = Annotated[int, typer.Option(help="Expert-parallel degree.", min=1)]
Dp = Annotated[int, typer.Option(help="Data-parallel degree: replicas of attention.", min=1)]
TrainTokens = Annotated[str | None, typer.Option(help=quality.HELP, callback=quality.check_tokens)]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON, in SI units.")]

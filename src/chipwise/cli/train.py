"""``chipwise train``: one model, trained for a budget of steps, tokens or CPU seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from chipwise.training.extended import Sign


def command(
    spec: Annotated[
        str,
        typer.Argument(
            help="A spec file, a Hugging Face config or known name, or a folder with weights to go on from."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A text source, text files or globs (repeat), or a run file. medical-definitions if not given."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: steps of the optimiser.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: tokens to learn from.")] = None,
    cpu_seconds: Annotated[float | None, typer.Option(help="Budget: CPU seconds of training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/train-<name> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training that the folder holds.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or fp32; the faster one unless given.")] = None,
    accumulate: Annotated[int, typer.Option(help="Batches whose gradients make one step.")] = 1,
    checkpoint_activations: Annotated[
        bool, typer.Option("--checkpoint-activations", help="Less memory: compute activations again.")
    ] = False,
    sharing: Annotated[str, typer.Option(help="Under torchrun: ddp, or fsdp for models that fill a GPU.")] = "ddp",
    batch: Annotated[int | None, typer.Option(help="Windows in a batch of one process; 16 unless given.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens in a window; 128 unless given.")] = None,
    rate: Annotated[float, typer.Option(help="Share of the recipe's learning rates.")] = 1.0,
    peak: Annotated[
        str | None, typer.Option(help="Peak for MFU: such as '989 TFLOP/s', a chip's name, or unknown; else measured.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and order of the text.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and no progress.")] = False,
) -> None:
    """Train a model, or go on with one; resumable after Ctrl-C or a kill. Ends with a Hugging Face folder.

    Several GPUs: torchrun --nproc-per-node 8 -m chipwise train SPEC …
    """
    from chipwise import api
    from chipwise.cli.output import console, json_of
    from chipwise.core import units
    from chipwise.core.digest import plain

    first = os.environ.get("RANK", "0") == "0"
    try:
        done = api.train(
            spec,
            data=data or ["medical-definitions"],
            steps=steps,
            tokens=tokens,
            cpu_seconds=cpu_seconds,
            out=out,
            resume=resume,
            device=device,
            precision=precision,
            accumulate=accumulate,
            checkpoint_activations=checkpoint_activations,
            sharing=sharing,
            batch=batch,
            window=window,
            rate=rate,
            peak=peak,
            seed=seed,
            on_progress=None if as_json or not first else _Progress(),
        )
    except KeyboardInterrupt:
        print("stopped; the state is kept, go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    if not first:
        return
    if as_json:
        json_of({**plain(done), "folder": str(done.folder)})
        return
    result = done.result
    speed = "" if done.tokens_per_s is None else f", {units.show(done.tokens_per_s, 'rate')}"
    share = "unknown" if done.mfu is None else units.show(done.mfu, "share", digits=2)
    used = "as kept" if done.tokens_per_s is None else f"MFU {share} (peak: {done.peak})"
    console.print(
        f"{result.bits_per_byte:.4f} bits/byte, perplexity {result.perplexity:.2f} on held-out text after "
        f"{result.steps:,} steps, {result.tokens:,} tokens{speed}, {used}"
    )
    console.print(f"model: {done.folder}")


class _Progress:
    """A line that is redrawn in a terminal; elsewhere a line every ten seconds."""

    def __init__(self) -> None:
        self._said = -10.0

    def __call__(self, sign: Sign) -> None:
        from chipwise.cli.output import notices
        from chipwise.core import units

        now = time.monotonic()
        if not notices.is_terminal and now - self._said < 10:
            return
        self._said = now
        learnt = "" if sign.bits_per_byte is None else f"{sign.bits_per_byte:.3f} bits/byte of training text, "
        used = "MFU unknown (unknown peak)" if sign.mfu is None else f"MFU {units.show(sign.mfu, 'share', digits=2)}"
        text = (
            f"step {sign.steps:,}, {sign.tokens:,} tokens, {learnt}{units.show(sign.tokens_per_s, 'rate')}, {used}, "
            f"{units.show(sign.left_s, 'time')} left"
        )
        end = "\r" if notices.is_terminal and sign.left_s > 0 else "\n"
        print(f"{text:<110}" if end == "\r" else text, end=end, file=sys.stderr, flush=True)

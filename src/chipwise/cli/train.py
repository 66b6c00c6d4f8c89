"""``chipwise train``: trains one model for a budget of steps, tokens or CPU seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import json_of, notices, put, say, stoppable
from chipwise.core import units
from chipwise.core.digest import plain


def command(
    spec: Annotated[
        str,
        typer.Argument(
            help="A spec file, a Hugging Face config or known name, or a folder with weights to start from."
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="A text source, text files or globs (repeat the option), or a run file, whose data are used. Default: "
            "medical-definitions."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: optimiser steps.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: training tokens.")] = None,
    cpu_seconds: Annotated[float | None, typer.Option(help="Budget: CPU seconds of training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/train-<name>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training run in the folder.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or fp32. Default: the faster one.")] = None,
    accumulate: Annotated[int, typer.Option(help="Gradient accumulation: batches per optimiser step.")] = 1,
    checkpoint_activations: Annotated[
        bool, typer.Option("--checkpoint-activations", help="Recompute activations to save memory.")
    ] = False,
    sharing: Annotated[str, typer.Option(help="With torchrun: ddp, or fsdp for models too large for one GPU.")] = "ddp",
    batch: Annotated[int | None, typer.Option(help="Sequences per batch and process. Default: 16.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per sequence. Default: 128.")] = None,
    rate: Annotated[float, typer.Option(help="Factor on the recipe's learning rates.")] = 1.0,
    peak: Annotated[
        str | None,
        typer.Option(help="Peak for MFU: a rate such as '989 TFLOP/s', a chip, or 'unknown'. Default: measured."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the weights and of the order of texts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, without progress.")] = False,
) -> None:
    """Train a model, or continue training one, and write it as a Hugging Face folder.

    Can be resumed after Ctrl-C or a kill. If training makes the model worse, its old weights are kept.
    On several GPUs: torchrun --nproc-per-node 8 -m chipwise train SPEC …

    Images, speech, series: chipwise train model.yaml --data vision.yaml --cpu-seconds 60
    """
    first = os.environ.get("RANK", "0") == "0"
    with stoppable():
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
    if not first:
        return
    if as_json:
        json_of({**plain(done), "folder": str(done.folder)})
        return
    if isinstance(done, answers.TaskTrained):
        say(f"after {done.steps:,} steps, {done.tokens:,} positions, {units.show(done.cpu_s, 'time')} of CPU")
        say(f"validation data: {done.validation.metric} {done.validation.shown}")
        put(f"model: {done.folder} (test data: {done.test.metric} {done.test.shown})")
        return
    result = done.result
    speed = "" if done.tokens_per_s is None else f", {units.show(done.tokens_per_s, 'rate')}"
    share = "unknown" if done.mfu is None else units.show(done.mfu, "share", digits=2)
    used = "already trained" if done.tokens_per_s is None else f"MFU {share} (peak: {done.peak})"
    if done.start_loss is not None:
        say(f"started from {done.start_loss:.4f} bits/byte on the validation text")
    say(
        f"{result.loss:.4f} bits/byte, perplexity {result.perplexity:.2f} on the validation text after "
        f"{result.steps:,} steps, {result.tokens:,} tokens{speed}, {used}"
    )
    if done.kept == "start":
        say("warning: the training made the model worse; the folder has the weights it started from")
    put(f"model: {done.folder} ({done.test_loss:.4f} bits/byte on the test text)")


class _Progress:
    """A line that is redrawn in a terminal, or printed every ten seconds elsewhere."""

    def __init__(self) -> None:
        self._printed_s = -10.0

    def __call__(self, update: answers.TrainingProgress | answers.Update) -> None:
        now = time.monotonic()
        if not notices.is_terminal and now - self._printed_s < 10:
            return
        self._printed_s = now
        if not isinstance(update, answers.TrainingProgress):
            print(f"{units.show(update.share, 'share')} of the budget", file=sys.stderr, flush=True)
            return
        loss = "" if update.loss is None else f"{update.loss:.3f} bits/byte of training text, "
        used = (
            "MFU unknown (unknown peak)" if update.mfu is None else f"MFU {units.show(update.mfu, 'share', digits=2)}"
        )
        text = (
            f"step {update.steps:,}, {update.tokens:,} tokens, {loss}"
            f"{units.show(update.tokens_per_s, 'rate')}, {used}, "
            f"{units.show(update.left_s, 'time')} left"
        )
        end = "\r" if notices.is_terminal and update.left_s > 0 else "\n"
        print(f"{text:<110}" if end == "\r" else text, end=end, file=sys.stderr, flush=True)

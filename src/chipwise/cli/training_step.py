"""``chipwise training-step``: time and memory of one optimiser step."""

from __future__ import annotations

from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options, quality
from chipwise.cli.estimate import memory_said
from chipwise.cli.output import json_of, print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table


def command(
    model: options.Model,
    device: options.Device = "h100-sxm",
    memory: options.Memory = None,
    runtime: Annotated[str, typer.Option(help="torch-compile or torch-eager.")] = "torch-compile",
    prompt: Annotated[int, typer.Option(help="Tokens per sequence.", min=1)] = 1024,
    like: options.Like = None,
    batch: Annotated[int, typer.Option(help="Sequences per step, over all replicas.", min=1)] = 1,
    microbatches: Annotated[int, typer.Option(help="Number of microbatches.", min=1)] = 1,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Recompute activations.")] = False,
    weights: Annotated[str | None, typer.Option(help="16-bit matrix-product format. Default: the device's.")] = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: Annotated[int, typer.Option(help="Data-parallel replicas.", min=1)] = 1,
    zero: Annotated[
        int, typer.Option(help="ZeRO: shard optimiser states (1), gradients too (2), weights too (3: FSDP) over --dp.")
    ] = 0,
    train_tokens: options.TrainTokens = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict one optimiser step: seconds, tokens per second, MFU, memory of the fullest device.

    chipwise training-step Qwen/Qwen3-0.6B --batch 8 --prompt 2048

    FSDP: chipwise training-step Qwen/Qwen3-8B --dp 8 --zero 3 --checkpoint --batch 8
    """
    model = answers.alike.named(model, like)
    step = api.estimate_training(
        model, device=completion.sized(device, memory), runtime=runtime, prompt=prompt, batch=batch,
        microbatches=microbatches, checkpoint=checkpoint, weights=weights, tp=tp, pp=pp, ep=ep, dp=dp, zero=zero,
    )  # fmt: skip
    json_of(quality.with_quality(step, model, train_tokens)) if as_json else _print(model, step)
    quality.print_quality(model, None if as_json else train_tokens)


def _print(model: str, step: answers.TrainingEstimate) -> None:
    several = f"{step.devices} x " if step.devices > 1 else ""
    say(f"{model}, one training step on {several}{step.device}: {step.provenance}, 90 % interval", bold=True)
    table = Table(columns=[Column(), Column(prose=True)])
    table.add("step", units.span(step.step.value, step.step.low, step.step.high, "time"))
    parts = {
        "forward": step.forward_s,
        "backward": step.backward_s,
        "recomputed": step.recompute_s,
        "optimiser": step.optimiser_s,
        "communication": step.communication_s,
    }
    for name, seconds in parts.items():
        if seconds:
            share = units.show(seconds / step.step.value, "share", digits=2)
            table.add(f"  {name}", f"{units.show(seconds, 'time')}, {share}")
    table.add("throughput", units.show(step.tokens_per_s, "rate"))
    table.add("MFU", units.show(step.mfu, "share"))
    table.add("memory per device", memory_said(step.peak_memory_bytes, step.memory_bytes))
    print_table(table)

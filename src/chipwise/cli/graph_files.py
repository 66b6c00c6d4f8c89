"""``chipwise explain``, ``estimate`` and ``compare`` for ONNX files and PyTorch modules: times by class of operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import json_of, print_table, refuse, say, say_notes
from chipwise.cli.whole_runs import print_runs
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric

MOST = 15  # maximum number of operators or modules to list
OTHERS = (
    "prompt", "new", "kv", "images", "size", "audio", "like", "batch", "tp", "pp", "ep", "dp", "memory", "gpu_layers",
    "n_cpu_moe", "host", "train_tokens", "kernels", "shared", "train", "checkpoint", "sensitivity", "other_chips",
    "html",
)  # fmt: skip
WHY = "does not apply to ONNX files and modules; describe their inputs with --shape"


class Told(TypedDict):
    """Keyword arguments for estimating an ONNX file or a module."""

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, float]
    runtime: str | None
    weights: str | None


def told(context: typer.Context, model: str) -> Told | None:
    """Returns the keyword arguments for estimating an ONNX file or a module; None for any other model.

    Raises:
        typer.BadParameter: An option does not apply.
    """
    if not answers.GraphQuestion(model=model).applies():
        refuse(context, *("shape", "value"), why="only applies to .onnx files and modules")
        return None
    refuse(context, *(name for name in OTHERS if name in context.params), why=WHY)
    shape, value = context.params["shape"], context.params["value"]
    return {
        "shapes": answers.parse_shapes(shape) if shape else {},
        "values": answers.parse_values(value) if value else {},
        "runtime": context.params["runtime"],
        "weights": context.params["weights"],
    }


def estimated(context: typer.Context, model: str, *, as_json: bool) -> bool:
    """Prints the answer of ``chipwise estimate`` if ``model`` is an ONNX file or a module; returns whether it is."""
    asked = told(context, model)
    if asked is None:
        return False
    if context.params["device"] == "all":
        several = api.estimate(model, devices="all", **asked)
        json_of(several.to_dict()) if as_json else _print_several(list(several))
        return True
    found = api.estimate(model, device=context.params["device"], **asked)
    json_of(found) if as_json else print_runs([found])
    return True


def compared(context: typer.Context, models: Sequence[str], devices: Sequence[str] | None, *, as_json: bool) -> bool:
    """Prints the answer of ``chipwise compare`` if ``models`` are ONNX files or modules; returns whether they are.

    Raises:
        typer.BadParameter: An option does not apply.
    """
    files = [name for name in models if answers.GraphQuestion(model=name).applies()]
    asked = told(context, files[0] if files else models[0])
    if asked is None:
        return False
    found = list(api.compare(models, devices=devices, **asked))
    json_of(found) if as_json else _print_several(found)
    return True


def _print_several(found: Sequence[answers.RunEstimate]) -> None:
    numbers = numeric("a pass, predicted (90 %)", "runs/s", "parameters")
    columns = [Column(head="device"), Column(head="model", prose=True), *numbers, Column(head="most of it", drop=1)]
    table = Table(columns=columns)
    for each in found:
        seconds, (most, share) = each.metrics["latency_s"], next(iter(each.shares.items()))
        table.add(
            each.device,
            each.model,
            units.span(seconds.value, seconds.low, seconds.high, "time"),
            units.number(each.metrics["runs_per_s"].value),
            units.number(sum(each.parameters.values())),
            f"{most} ({units.show(share, 'share', digits=2)})",
        )
    print_table(table)
    say_notes(dict.fromkeys(note for each in found for note in each.notes if "not fitted" not in note))
    if any("not fitted" in note for each in found for note in each.notes):
        say(
            "note: the cost model was not fitted to these chips, so intervals are wide; comparisons of files on one "
            "chip are more certain"
        )


def explained(context: typer.Context, model: str, *, as_json: bool) -> bool:
    """Prints the answer of ``chipwise explain`` if ``model`` is an ONNX file or a module; returns whether it is."""
    asked = told(context, model)
    if asked is None:
        return False
    every = context.params["every"]
    found = api.explain(model, device=context.params["device"], threads=context.params["threads"], **asked)
    json_of(found) if as_json else _print(found, every=every)
    return True


def _print(found: answers.GraphExplanation, *, every: bool) -> None:
    print_runs([found.estimate])
    whole = found.estimate.latency_s
    say(f"work: {units.number(found.flops)} FLOPs, {units.show(found.weight_bytes, 'bytes')} of weights")
    say()
    _shares("class of operator", found.estimate.shares, whole)
    if found.modules:
        say()
        _shares("module", found.modules, whole)
    say()
    most = None if every else MOST
    columns = [Column(head="operator"), Column(head="name", prose=True, drop=1)]
    columns += [*numeric("time", "share", "FLOPs", "bytes", "of limit"), Column(head="bound")]
    table = Table(columns=columns)
    for each in found.operators[:most]:
        seconds = each.seconds
        reached = each.limit_s / seconds if each.limit_s is not None and seconds else None
        table.add(
            f"{each.op_type} ({each.kind})",
            each.name,
            "unknown" if seconds is None else units.show(seconds, "time"),
            "" if seconds is None else units.show(seconds / whole, "share", digits=2),
            "unknown" if each.flops is None else units.number(each.flops),
            "unknown" if each.bytes is None else units.show(each.bytes, "bytes"),
            "" if reached is None else units.show(reached, "share", digits=2),
            each.bound.value if each.bound else "",
        )
    print_table(table)
    if most is not None and len(found.operators) > most:
        say(f"{len(found.operators) - most} more operators with --all")
    say()
    say("Largest gains" if found.gains else "No change is predicted to gain much", bold=True)
    for number, change in enumerate(found.gains, start=1):
        say(f"{number:>2}. {change.what}: {units.number(change.times)} times faster ({change.why})", hang=4)


def _shares(head: str, shares: dict[str, float], whole_s: float) -> None:
    table = Table(columns=[Column(head=head), *numeric("time", "share")])
    for name, share in list(shares.items())[:MOST]:
        table.add(name, units.show(share * whole_s, "time"), units.show(share, "share", digits=2))
    print_table(table)

"""``chipwise models``: the models that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options
from chipwise.cli.output import json_of, print_table, refuse
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric
from chipwise.errors import UnknownName

if TYPE_CHECKING:
    from chipwise.core.results import ResultTable


def command(
    context: typer.Context,
    contains: Annotated[str | None, typer.Argument(help="List only ids that contain this text.")] = None,
    device: Annotated[
        str | None, typer.Option(help="List the language models that fit on this device, and how fast they answer.")
    ] = None,
    memory: options.Memory = None,
    host: Annotated[
        str | None,
        typer.Option(help="With --device: also models split between card and this host (a processor, or '60 GB/s')."),
    ] = None,
    prompt: Annotated[int, typer.Option(help="With --device: prompt tokens.")] = 512,
    new: Annotated[int, typer.Option(help="With --device: new tokens.")] = 128,
    as_json: options.AsJson = False,
) -> None:
    """List the bundled models: id, parameters (and active ones per token), layers, width, context.

    Fine-tuned and quantised repositories of these models work too, and so does any config.json. Models that generate
    images or videos are listed last; any id that contains the listed name selects the model.

    \b
      chipwise models qwen3
      chipwise models --device "rtx 4070"      what runs on it: largest first, in the chip's usual runtime and format
    """
    if device is None:
        refuse(context, "memory", "host", "prompt", "new", why="needs --device")
    known = api.models(contains)
    if not known:
        raise UnknownName("model", contains, answers.model_names(), listed_by="chipwise models")
    if device is not None:
        _on_device(
            api.models_on(completion.sized(device, memory), contains, prompt_tokens=prompt, new_tokens=new, host=host),
            as_json=as_json,
        )
    elif as_json:
        json_of(known.to_dict())
    else:
        _list(known)


def _list(found: ResultTable[answers.ModelEntry]) -> None:
    heads = ("params", "active", "layers", "width", "context", "kind", "weights")
    columns = [Column(head="model"), *numeric(*((head, n) for n, head in enumerate(heads)))]
    table = Table(columns=columns, title=found.title)
    for model in found:
        active = "" if model.active_parameters == model.parameters else units.show(model.active_parameters, "count")
        table.add(
            model.name,
            units.show(model.parameters, "count"),
            active,
            str(model.layers),
            str(model.d_model),
            f"{model.max_tokens:,}" if model.max_tokens else "",
            model.kind,
            model.weights,
        )
    print_table(table)


def _on_device(found: ResultTable[answers.ModelOnDevice], *, as_json: bool) -> None:
    if as_json:
        json_of(found.to_dict())
        return
    divided = any(model.on_card for model in found)
    sizes = (("params", 2), ("active", 4), ("runtime", 5), ("weights", 1), ("memory", 3), ("TTFT", 6))
    columns = [Column(head="model"), *numeric("tokens/s (90 %)", *sizes)]
    columns += [Column(head="divided", prose=True)] if divided else []
    table = Table(columns=columns, title=found.title)
    for model in found:
        active = "" if model.active_parameters == model.parameters else units.show(model.active_parameters, "count")
        table.add(
            model.name,
            f"{model.decode_tokens_per_s:.3g} ({model.low_tokens_per_s:.3g} to {model.high_tokens_per_s:.3g})",
            units.show(model.parameters, "count"),
            active,
            model.runtime,
            model.weights,
            units.show(model.peak_memory_bytes, "bytes"),
            units.show(model.ttft_s, "time"),
            *((model.on_card,) if divided else ()),
        )
    print_table(table)

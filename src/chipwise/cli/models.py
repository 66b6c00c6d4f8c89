"""``chipwise models``: the models that are known by name."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    contains: Annotated[str | None, typer.Argument(help="List only ids that contain this text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the bundled models: id, parameters (and active ones per token), layers, width, context.

    Fine-tuned and quantised repositories of these models work too, and so does any config.json. Models that make
    pictures or videos stand at the end; any id that holds their name means them.
    """
    from chipwise import api
    from chipwise.api.catalogue import model_names
    from chipwise.cli.output import json_of, print_table
    from chipwise.core import units
    from chipwise.core.errors import UnknownName
    from chipwise.core.layout import Column, Table

    found = api.models(contains)
    if not found:
        raise UnknownName("model", contains, model_names(), listed_by="chipwise models")
    if as_json:
        json_of(found.to_dict())
        return
    heads = ("params", "active", "layers", "width", "context", "kind", "weights")
    columns = [Column(head="model"), *(Column(head=head, right=True, drop=n) for n, head in enumerate(heads))]
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

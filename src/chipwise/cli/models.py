"""``chipwise models``: the models that are known by name."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    contains: Annotated[str | None, typer.Argument(help="List only ids that contain this text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the bundled models: id, parameters (and active ones per token), layers, width, context.

    Fine-tuned and quantised repositories of these models work too, and so does any config.json.
    """
    from rich.table import Table

    from chipwise import api
    from chipwise.cli.output import json_of, print_whole
    from chipwise.core import units
    from chipwise.core.errors import UnknownName
    from chipwise.spec import families

    found = api.models(contains)
    if not found:
        raise UnknownName("model", contains, families.names())
    if as_json:
        json_of(found.to_dict())
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=found.title, title_justify="left")
    for name in ("model", "params", "active", "layers", "width", "context"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for model in found:
        active = "" if model.active_parameters == model.parameters else units.show(model.active_parameters, "count")
        table.add_row(
            model.name,
            units.show(model.parameters, "count").replace(" ", ""),
            active.replace(" ", ""),
            str(model.layers),
            str(model.d_model),
            f"{model.max_tokens / 1024:.0f}k" if model.max_tokens >= 1024 else str(model.max_tokens),
        )
    print_whole(table)

"""``chipwise runtimes``: the runtimes that are known, and the weight formats."""

from __future__ import annotations

from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the inference runtimes (which can be estimated, which can be measured here) and the weight formats."""
    from rich.markup import escape
    from rich.table import Table

    from chipwise import api
    from chipwise.api.catalogue import weight_formats
    from chipwise.cli.output import console, json_of, print_whole

    found = api.runtimes()
    if as_json:
        json_of({"runtimes": found.to_dict(), "weights": weight_formats()})
        return
    table = Table(box=None, pad_edge=False, title=found.title, title_justify="left")
    for name in ("runtime", "estimate", "measure here"):
        table.add_column(name, no_wrap=name != "measure here")
    for runtime in found:
        here = (runtime.missing or "yes") if runtime.measured else "no"
        table.add_row(runtime.name, "yes" if runtime.estimated else "no", escape(here))
    print_whole(table)
    console.print(f"\nweight formats: {', '.join(weight_formats())}", highlight=False)

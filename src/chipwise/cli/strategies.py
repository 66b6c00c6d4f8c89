"""``chipwise strategies``: how a search can be searched, and when to use which."""

from __future__ import annotations

from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """List the search strategies: when to use which, and what has to be installed.

    One is chosen in a spec with: search: {strategy: NAME}
    """
    from chipwise.cli import show
    from chipwise.optim import STRATEGIES, about

    known = {name: about(name) for name in STRATEGIES.names()}
    if as_json:
        show.json_of([{"name": name, "when": one.when, "extra": one.extra or None} for name, one in known.items()])
        return
    from rich.table import Table

    shown = Table(caption="Scores on spaces with known fronts: docs/strategies.md")
    shown.add_column("strategy", no_wrap=True)
    shown.add_column("use it when")
    shown.add_column("needs", no_wrap=True)
    for name, one in known.items():
        shown.add_row(name, one.when, f"chipwise\\[{one.extra}]" if one.extra else "")
    show.console.print(shown)

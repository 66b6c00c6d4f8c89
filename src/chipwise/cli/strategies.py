"""``chipwise strategies``: lists the search strategies."""

from __future__ import annotations

from chipwise.api import answers
from chipwise.cli import options, show
from chipwise.cli.output import print_table
from chipwise.core.layout import Column, Table


def command(as_json: options.AsJson = False) -> None:
    """List the search strategies, when to use each, and what each needs installed.

    A run file selects one with: search: {strategy: NAME}
    """
    known = {name: answers.strategy_info(name) for name in answers.STRATEGIES.names()}
    if as_json:
        show.json_of([{"name": name, "when": one.when, "extra": one.extra or None} for name, one in known.items()])
        return

    shown = Table(
        columns=[Column(head="strategy"), Column(head="use it when", prose=True), Column(head="needs")],
        caption="Scores on spaces with known Pareto fronts: docs/concepts/strategies.md",
    )
    for name, one in known.items():
        shown.add(name, one.when, f"chipwise[{one.extra}]" if one.extra else "")
    print_table(shown)

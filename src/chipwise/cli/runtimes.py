"""``chipwise runtimes``: the runtimes that are known, and the weight formats."""

from __future__ import annotations

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options
from chipwise.cli.output import json_of, print_table, say
from chipwise.core.layout import Column, Table


def command(as_json: options.AsJson = False) -> None:
    """List the inference runtimes (which can be estimated, which can be measured here) and the weight formats."""
    found = api.runtimes()
    if as_json:
        json_of({"runtimes": found.to_dict(), "weights": answers.weight_formats()})
        return
    columns = [Column(head="runtime"), Column(head="estimate"), Column(head="measure here", prose=True)]
    table = Table(columns=columns, title=found.title)
    for runtime in found:
        here = (runtime.missing or "yes") if runtime.measured else "no"
        table.add(runtime.name, "yes" if runtime.estimated else "no", here)
    print_table(table)
    say(f"weight formats: {', '.join(answers.weight_formats())}")

"""``chipwise space``: size and contents of a search space."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise.api import answers
from chipwise.cli import output, show
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric


def command(
    spec: Annotated[Path, typer.Argument(help="A run file, or a file with only a space.")],
    device: Annotated[
        str | None,
        typer.Option(help="Predict costs from this data sheet (chipwise devices). Default: the file's target."),
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="Runtime on that device (chipwise runtimes); the device's own unless given.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Designs to show.")] = 5,
    draws: Annotated[int, typer.Option(help="Random candidates for the feasible share and the extremes.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and no progress.")] = False,
) -> None:
    """Show a space's size, sample designs, the share within the limits, and the extremes of every metric."""
    profile = answers.profile_of(spec)
    with show.bar("sampling the space", quiet=as_json) as progress:
        found = answers.overview_of(
            spec,
            profile=profile,
            device=device,
            runtime=runtime,
            seed=seed,
            draws=draws,
            samples=samples,
            progress=progress,
        )
    if as_json:
        output.json_of(found)
        return
    _show(found)


def _show(found: answers.Overview) -> None:
    say(f"{answers.show_size(found.size)} distinct designs in {found.choices} choices")
    if found.priced_by is None:
        say(
            "costs are not predicted: this machine was not calibrated in this runtime (chipwise calibrate), and no "
            "--device was named"
        )
    else:
        say(f"costs predicted by {found.priced_by}")
    if found.feasible_share is not None:
        share = units.show(found.feasible_share, "share")
        say(f"{share} of {found.drawn:,} random candidates meet the limits that can be predicted")
    if found.closest is not None:
        say(found.closest)
    if found.unjudged:
        say(f"not checked, because they cannot be predicted: {', '.join(found.unjudged)}")
    say()
    intervals = any(item.least.intervals for item in found.extremes)
    extremes = Table(
        title="extremes",
        columns=[
            Column(head="metric"),
            Column(),
            Column(head="value", right=True),
            *([Column(head="90 % interval", drop=1)] if intervals else []),
            Column(head="design", prose=True),
        ],
    )
    for item in found.extremes:
        for name, end in (("least", item.least), ("most", item.most)):
            kind, value = answers.METRICS[item.metric], end.metrics[item.metric]
            ends = end.intervals.get(item.metric)
            span = "" if ends is None else units.interval(value, *ends, kind)
            between = [span] if intervals else []
            extremes.add(item.metric if name == "least" else "", name, units.show(value, kind), *between, end.summary)
    print_table(extremes)
    if found.samples:
        say()
        metrics = tuple(found.samples[0].metrics)
        samples = Table(
            title="samples",
            columns=[
                *numeric(*((name, i) for i, name in enumerate(metrics))),
                Column(head="design", prose=True),
            ],
        )
        for one in found.samples:
            samples.add(*(units.show(one.metrics[name], answers.METRICS[name]) for name in metrics), one.summary)
        print_table(samples)

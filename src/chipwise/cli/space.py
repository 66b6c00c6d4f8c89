"""``chipwise space``: what a space holds, before anything is searched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from chipwise.pipeline.overview import Overview


def command(
    spec: Annotated[Path, typer.Argument(help="A search's YAML file, or a file with a space alone.")],
    device: Annotated[
        str | None, typer.Option(help="Price by this data sheet (chipwise devices); else by this machine's profile.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Designs to show.")] = 5,
    draws: Annotated[int, typer.Option(help="Candidates drawn for the feasible share and the extremes.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON and no progress.")] = False,
) -> None:
    """Tell a space's size, samples, the share that is feasible by cost, and the extremes of every metric."""
    from chipwise.cli import output, show
    from chipwise.core.files import build, read_yaml
    from chipwise.pipeline.overview import overview_of
    from chipwise.profile.store import profile_path
    from chipwise.run.spec import TargetSpec

    target = build(TargetSpec, read_yaml(spec).get("target", {}), file=str(spec), field="target")
    with show.bar("looking over the space", quiet=as_json) as progress:
        found = overview_of(
            spec,
            profile=profile_path(target.runtime, target.threads),
            device=device,
            seed=seed,
            draws=draws,
            samples=samples,
            progress=progress,
        )
    if as_json:
        output.json_of(found)
        return
    _show(found)


def _show(found: Overview) -> None:
    from rich.table import Table

    from chipwise.cli.output import console
    from chipwise.core import units
    from chipwise.space.constraints import METRICS

    size = f"{found.size:,}" if found.size < 10**9 else f"{found.size:.3e}"
    console.print(f"{size} distinct designs in {found.choices} choices")
    if found.priced_by is None:
        console.print(
            "priced by nothing: this machine was not calibrated in this runtime (chipwise calibrate), "
            "and no --device was named"
        )
    else:
        console.print(f"priced by {found.priced_by}")
    if found.feasible_share is not None:
        console.print(f"{found.feasible_share:.2%} of {found.drawn:,} drawn candidates hold the limits that are judged")
    if found.closest is not None:
        console.print(found.closest)
    if found.unjudged:
        console.print(f"not judged, since nothing here predicts them: {', '.join(found.unjudged)}")
    table = Table(title="extremes", show_lines=False)
    for name in ("metric", "least", "most"):
        table.add_column(name)
    for item in found.extremes:
        table.add_row(
            item.metric,
            *(
                f"{units.show(end.metrics[item.metric], METRICS[item.metric])}  {end.summary}"
                for end in (item.least, item.most)
            ),
        )
    console.print(table)
    if found.samples:
        table = Table(title="samples")
        for name in ("design", *found.samples[0].metrics):
            table.add_column(name, justify="left" if name == "design" else "right")
        for one in found.samples:
            table.add_row(one.summary, *(units.show(v, METRICS[name]) for name, v in one.metrics.items()))
        console.print(table)

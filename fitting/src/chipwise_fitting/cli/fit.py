"""``chipwise fit``: refits the constants of the cost models to their measurements."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Source(StrEnum):
    """Source of the measurements."""

    AICONFIGURATOR = "aiconfigurator"
    EDGE = "edge"
    VENDORS = "vendors"
    VISION = "vision"
    PHONES = "phones"
    ENERGY = "energy"
    LAYERS = "layers"
    TAILS = "tails"
    MEASUREMENTS = "measurements"


def command(
    source: Annotated[
        Source,
        typer.Option(
            "--from",
            help="aiconfigurator (the package), measurements (this machine's), or the kind of the table in --truth.",
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="gemm, attention, latent, experts, collective, scan, power or serving. Default: all."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the arrays. Default: chipwise's own data.")] = None,
    truth: Annotated[Path | None, typer.Option(help="With a table: the file of measured runs, or its folder.")] = None,
    runtime: Annotated[str, typer.Option(help="With measurements: the runtime of the profile.")] = "onnxruntime",
    threads: Annotated[int, typer.Option(help="With measurements: the threads of the profile.", min=1)] = 1,
    count: Annotated[
        int | None, typer.Option(help="With measurements: use only this many, chosen at random.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """Refit cost models to their measurements; print the errors on left-out data.

    chipwise's constants for other devices: chipwise fit --from aiconfigurator --kind gemm

    Runtimes for one user, such as llama.cpp and MLX: chipwise fit --from edge --truth edge.csv.gz

    Batches in vLLM and similar engines, image models, phones, energy, layers: chipwise fit --from vendors --truth DIR

    This machine's own profile: chipwise fit --from measurements --runtime onnxruntime
    """
    from chipwise import api
    from chipwise.cli.output import console, json_of, notices
    from chipwise.core import units
    from chipwise_fitting.commands import fit

    if source is Source.MEASUREMENTS:
        learned, path = api.learn(runtime=runtime, threads=threads, count=count)
        if as_json:
            json_of({"profile": str(path), "before": learned.before, "after": learned.after})
            return
        for name, before in learned.before.items():
            after = learned.after.get(name, before)
            errors = [units.show(each.mape, "share") for each in (before, after)]
            console.print(f"{name}: error on rows that were left out of the fit: {errors[0]} before, {errors[1]} now")
        console.print(f"learned from {len(learned.used)} measurements; wrote {path}")
        return

    if source is not Source.AICONFIGURATOR:
        kind = [source.value]
    reports = fit(kind or (), truth, out, on_progress=notices.print)
    if as_json:
        json_of(reports)
        return
    for report in reports:
        console.print(report, highlight=False)

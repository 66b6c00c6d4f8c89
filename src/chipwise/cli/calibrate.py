"""``chipwise calibrate``: what this machine can do, in the runtime that will serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runtime: Annotated[str, typer.Option(help="The runtime to calibrate.")] = "onnxruntime",
    threads: Annotated[int, typer.Option(help="Threads that the runtime may use.", min=1)] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the profile; the user's data folder unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure this machine in a runtime and write its profile (under a minute).

    Rates of matrix products by format and size, bandwidth by working set, the cost of a node, memory of the process;
    then a check on whole models that were not in the fit.
    """
    from chipwise import api
    from chipwise.cli import show

    with show.bar("calibrating", quiet=as_json) as progress:
        profile, path = api.calibrate(runtime=runtime, threads=threads, out=out, progress=progress)
    if as_json:
        show.json_of(profile)
    else:
        show.profile(profile, path)

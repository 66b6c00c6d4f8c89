"""``chipwise calibrate``: measures this machine's speed in a runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.cli import show
from chipwise.cli.output import stoppable
from chipwise.errors import InputError


def command(
    runtime: Annotated[str, typer.Option(help="The runtime to calibrate.")] = "onnxruntime",
    threads: Annotated[int, typer.Option(help="Threads that the runtime may use.", min=1)] = 1,
    minutes: Annotated[
        float,
        typer.Option(
            help="Minutes on an idle machine, 0.25 to 60. From one minute on, models larger than most caches are "
            "measured too; longer calibrations measure more models.",
        ),
    ] = 1.25,
    out: Annotated[Path | None, typer.Option(help="File for the profile. Default: in the user's data folder.")] = None,
    images: Annotated[bool, typer.Option("--images", help="Calibrate for image classifiers.")] = False,
    ranking: Annotated[bool, typer.Option("--ranking", help="Calibrate for ranking models.")] = False,
    sounds: Annotated[bool, typer.Option("--sounds", help="Calibrate for models that transcribe sound.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure this machine in a runtime and write its profile (in about 75 seconds).

    The profile holds the rates of matrix products by format and size, the bandwidth by working set, the time that each
    graph node adds, and the memory of the process. As a check, each measured model is predicted by a fit to the other
    models. A calibration that was stopped (Ctrl-C) continues if you run the command again within a day.
    """
    if not 0.25 <= minutes <= 60:
        raise InputError(f"--minutes: must be from 0.25 to 60, not {minutes:g}")
    how = "results are kept for a day; run the command again to continue"
    with stoppable(how), show.bar("calibrating", quiet=as_json) as progress:
        profile, path = api.calibrate(
            runtime=runtime,
            threads=threads,
            seconds=60 * minutes,
            out=out,
            on_progress=progress,
            images=images,
            ranking=ranking,
            sounds=sounds,
        )
    if as_json:
        show.json_of(profile)
        return
    show.profile(profile, path)

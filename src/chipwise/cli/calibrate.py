"""``chipwise calibrate``: measures what this machine can do in a runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import show
from chipwise.cli.output import print_table
from chipwise.core import units
from chipwise.core.dtypes import DType
from chipwise.core.layout import Column, Table
from chipwise.errors import InputError


def command(
    runtime: Annotated[str, typer.Option(help="The runtime to calibrate.")] = "onnxruntime",
    threads: Annotated[int, typer.Option(help="Threads that the runtime may use.", min=1)] = 1,
    minutes: Annotated[
        float,
        typer.Option(
            help="Duration on an idle machine, 0.25 to 60. From one minute on, models larger than most caches are "
            "measured too; longer calibrations measure more models.",
        ),
    ] = 1.25,
    against: Annotated[
        str | None, typer.Option(help="Data sheet to compare with, such as h100-sxm (see chipwise devices).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the profile. Default: in the user's data folder.")] = None,
    images: Annotated[bool, typer.Option("--images", help="For image classifiers.")] = False,
    ranking: Annotated[bool, typer.Option("--ranking", help="For ranking models.")] = False,
    sounds: Annotated[bool, typer.Option("--sounds", help="For models that transcribe sound.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure this machine in a runtime and write its profile (in about 75 seconds).

    The profile holds rates of matrix products by format and size, bandwidth by working set, the cost of a node, and
    memory of the process. Its check predicts whole models, each by a fit without it. A calibration that was stopped
    (Ctrl-C) continues if you run the command again within a day.
    """
    if not 0.25 <= minutes <= 60:
        raise InputError(f"--minutes: must be from 0.25 to 60, not {minutes:g}")
    sheet = (
        None if against is None else answers.datasheet.load(against)
    )  # a wrong name is reported before anything is timed
    try:
        with show.bar("calibrating", quiet=as_json) as progress:
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
    except KeyboardInterrupt:
        print("stopped; results are kept for a day, run the command again to continue", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        show.json_of({"profile": profile, "against": compared(profile, sheet)} if sheet is not None else profile)
        return
    show.profile(profile, path)
    if sheet is not None:
        _print_comparison(sheet.title, compared(profile, sheet))


def compared(profile: api.MachineProfile, sheet: answers.DeviceProfile) -> list[dict[str, Any]]:
    """Measured and published figures in SI units; None if unknown.

    Measured peaks are for matrix products in that weight format on ``profile.threads`` threads; published peaks are for
    the whole chip.
    """
    formats = {"fp32": DType.FP32, "int8": DType.INT8, "int4": DType.INT4}
    rows: list[dict[str, Any]] = [
        {
            "fact": f"peak {name}",
            "kind": "compute",
            "measured": profile.peaks.get(name),
            "published": sheet.peak_flops_per_s.get(dtype),
        }
        for name, dtype in formats.items()
    ]
    rows += [
        {
            "fact": "memory bandwidth",
            "kind": "bandwidth",
            "measured": profile.roofs.get("DRAM"),
            "published": sheet.mem_bandwidth_bytes_per_s,
        },
        {
            "fact": "memory",
            "kind": "bytes",
            "measured": float(profile.machine.memory_bytes),
            "published": sheet.mem_capacity_bytes,
        },
    ]
    return rows


def _print_comparison(title: str, rows: list[dict[str, Any]]) -> None:
    heads = ("measured here", "data sheet", "share")
    table = Table(
        title=f"this machine against {title}",
        columns=[Column(head="fact"), *(Column(head=head, right=True) for head in heads)],
    )
    for row in rows:
        here, there = (row[name] and units.show(row[name], row["kind"]) for name in ("measured", "published"))
        share = units.show(row["measured"] / row["published"], "share", digits=2) if here and there else "–"
        table.add(row["fact"], here or "–", there or "not published", share)
    print_table(table)

"""``chipwise calibrate``: what this machine can do, in the runtime that will serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from chipwise.hardware.datasheet import DeviceProfile
    from chipwise.hardware.device import MachineProfile


def command(
    runtime: Annotated[str, typer.Option(help="The runtime to calibrate.")] = "onnxruntime",
    threads: Annotated[int, typer.Option(help="Threads that the runtime may use.", min=1)] = 1,
    minutes: Annotated[
        float, typer.Option(help="About how long on an idle machine; more measures more models.", min=0.25, max=60)
    ] = 0.75,
    against: Annotated[
        str | None, typer.Option(help="A data sheet to compare with, such as h100-sxm (chipwise devices).")
    ] = None,
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
    from chipwise.hardware import datasheet

    sheet = None if against is None else datasheet.load(against)  # a wrong name is said before a minute is spent
    with show.bar("calibrating", quiet=as_json) as progress:
        profile, path = api.calibrate(
            runtime=runtime, threads=threads, seconds=60 * minutes, out=out, on_progress=progress
        )
    if as_json:
        show.json_of({"profile": profile, "against": compared(profile, sheet)} if sheet is not None else profile)
        return
    show.profile(profile, path)
    if sheet is not None:
        _print_comparison(sheet.title, compared(profile, sheet))


def compared(profile: MachineProfile, sheet: DeviceProfile) -> list[dict[str, Any]]:
    """What was measured here beside what the data sheet says, in SI units; None where either is silent.

    Measured peaks are of products in that weight format on ``profile.threads`` threads; published ones are of the whole
    chip.
    """
    from chipwise.core.dtypes import DType

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
    from rich.table import Table

    from chipwise.cli import show
    from chipwise.core import units

    table = Table(title=f"this machine against {title}")
    for head in ("fact", "measured here", "data sheet", "share"):
        table.add_column(head, justify="left" if head == "fact" else "right")
    for row in rows:
        here, there = (row[name] and units.show(row[name], row["kind"]) for name in ("measured", "published"))
        share = f"{100 * row['measured'] / row['published']:.2g} %" if here and there else "–"
        table.add_row(row["fact"], here or "–", there or "not published", share)
    show.console.print(table)

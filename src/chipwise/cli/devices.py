"""``chipwise devices``: published facts of each chip, with their sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chipwise.api import answers
from chipwise.cli import completion, options, output
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.dtypes import DType
from chipwise.core.layout import Column, Table, numeric
from chipwise.errors import counted

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def table(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List all devices: memory, bandwidth, dense peaks by number format, power, price.

    One device with every source: chipwise devices show h100-sxm
    """
    if context.invoked_subcommand is not None:
        return

    devices = answers.datasheet.load_all()
    if as_json:
        output.json_of([_summary(device) for device in devices])
        return
    output.print_table(_overview(devices))
    if machines := answers.taught.names():
        output.say(f"machines taught by you (chipwise teach): {', '.join(machines)}")


@app.command("show")
def one(
    name: Annotated[
        str,
        typer.Argument(help="A device's name or alias, or the path of a YAML file.", autocompletion=completion.devices),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Show every fact of one device with its source."""
    device = answers.datasheet.load(name)
    if as_json:
        learnt = {} if device.taught is None else {"taught": _teaching(device.taught)}
        facts = {
            path: {"value": fact.value, "si": getattr(fact, "number", None), "source": fact.source}
            for path, fact in device.facts()
        }
        output.json_of(_summary(device) | {"aliases": device.aliases, "facts": facts} | learnt)
    else:
        if (taken := answers.datasheet.said_of(name)) is not None:
            output.say(taken)
        _print_one(device)


def _teaching(found: answers.Teaching) -> dict[str, Any]:
    names = ("name", "version", "created", "base", "machine", "rows", "source", "check")
    return {name: getattr(found, name) for name in names}


def _summary(device: answers.DeviceProfile) -> dict[str, Any]:
    return {
        "name": device.name,
        "title": device.title,
        "vendor": device.vendor,
        "family": device.family,
        "architecture": device.architecture,
        "kind": device.kind,
        "year": device.year,
        "memory_bytes": device.mem_capacity_bytes,
        "bandwidth_bytes_per_s": device.mem_bandwidth_bytes_per_s,
        "peak_flops_per_s": dict(device.peak_flops_per_s),
        "board_power_w": _number(device.board_power),
        "idle_power_w": _number(device.idle_power),
        "launch_overhead_s": _number(device.launch_overhead),
        "price_usd_per_s": _number(device.price),
    }


def _number(fact: answers.Fact | None) -> float | None:
    return None if fact is None else fact.number


def _overview(devices: list[answers.DeviceProfile]) -> Table:
    formats = {DType.FP32: 5, DType.BF16: 0, DType.FP16: 4, DType.FP8: 0, DType.INT8: 3, DType.FP4: 2}
    rates = [(each.value, drop) for each, drop in formats.items()]
    shown = Table(
        title=f"{counted(len(devices), 'device')}; dense peaks in operations per second, of the fastest engine",
        caption="–: not published. To see every fact with its source: chipwise devices show NAME",
        columns=[Column(head="device"), *numeric("memory", "bandwidth", *rates, ("power", 1), ("price", 1))],
    )
    for device in devices:
        peaks = device.peak_flops_per_s
        power, price = _number(device.board_power), _number(device.price)
        shown.add(
            device.name,
            units.show(device.mem_capacity_bytes, "bytes"),
            units.show(device.mem_bandwidth_bytes_per_s, "bandwidth"),
            *(units.show(peaks[f], "compute").removesuffix("FLOP/s") if f in peaks else "–" for f in formats),
            "–" if power is None else units.show(power, "power"),
            "–" if price is None else units.show(price, "price_rate"),
        )
    return shown


def _print_one(device: answers.DeviceProfile) -> None:
    if device.taught is not None:
        found = device.taught
        error = (
            "" if found.check is None else f", mean error {units.show(found.check.mean, 'share')} on held-out models"
        )
        say(f"{found.label}, {found.created}: {found.provenance}{error}; the facts below are from the data sheet")
    say(f"{device.title}  ({device.name})", bold=True)
    say(f"{device.vendor} {device.architecture}, {device.kind} of {device.year}, family {device.family}")
    if device.aliases:
        say(f"also called {', '.join(device.aliases)}")
    columns = [Column(head="fact"), Column(head="value"), Column(head="source", prose=True)]
    shown = Table(columns=columns, caption="Unpublished facts are left out.")
    for path, fact in device.facts():
        shown.add(path, str(fact.value), fact.source)
    for engine in device.engines:
        for dtype in engine.dtypes():
            rate = engine.derived(dtype)
            if dtype not in engine.peak and rate is not None:
                path = f"engines.{engine.name}.peak.{dtype}"
                shown.add(path, units.show(rate, "compute", digits=4), "derived: units × FMA per clock × 2 × clock")
    print_table(shown)

"""``chipwise measurements``: lists, shows, exports, imports and deletes stored measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import options, show
from chipwise.cli.measured import measurement_table
from chipwise.cli.output import print_table, say
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric

app = typer.Typer(rich_markup_mode=None)
DEVICE = typer.Option(help="Only measurements on the machine with this name.")
RUNTIME = typer.Option(help="Only measurements in this runtime.")


@app.callback(invoke_without_command=True)
def table(
    context: typer.Context,
    device: Annotated[str | None, DEVICE] = None,
    runtime: Annotated[str | None, RUNTIME] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the measurements of all runs and commands of this user.

    They are kept in one file in the user's data folder (CHIPWISE_HOME if set), which several processes may write at
    once.
    """
    if context.invoked_subcommand is None:
        _list(device, runtime, as_json)


@app.command("list")
def listed(
    device: Annotated[str | None, DEVICE] = None,
    runtime: Annotated[str | None, RUNTIME] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the stored measurements."""
    _list(device, runtime, as_json)


def _list(device: str | None, runtime: str | None, as_json: bool) -> None:
    store = answers.MeasurementStore()
    rows = [summary(item) for item in store.entries(device=device, runtime=runtime)]
    if as_json:
        show.json_of(rows)
        return
    if not rows and (device or runtime) and store.entries():
        say(f"{store.path} holds no measurements of {' and '.join(filter(None, (device, runtime)))}")
        return
    if not rows:
        say(f"no measurements yet in {store.path}; try: chipwise measure gpt2")
        return
    heads = {"id": 0, "when": 5, "model": 0, "machine": 6, "runtime": 7}
    shown = Table(
        title=f"{len(rows)} measurement{'s' if len(rows) > 1 else ''} in {store.path}",
        columns=[
            *(Column(head=head, drop=drop) for head, drop in heads.items()),
            *numeric("TTFT", "TPOT", ("memory", 4)),
            Column(head="clean"),
            Column(head="by", drop=8),
        ],
        caption="TTFT and TPOT are P50; to see all of one measurement: chipwise measurements show ID",
    )
    for row in rows:
        memory = row["peak_memory_bytes"]
        shown.add(
            row["id"][:8],
            row["added"].replace("T", " ")[:16],
            row["name"],
            row["device"],
            f"{row['runtime']} {row['runtime_version']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}",
            units.show(row["ttft_p50_s"], "time"),
            "–" if row["tpot_p50_s"] is None else units.show(row["tpot_p50_s"], "time"),
            "unavailable" if memory is None else units.show(memory, "bytes"),
            "yes" if row["clean"] else "no",
            row["source"],
        )
    print_table(shown)


def summary(item: answers.Stored) -> dict[str, Any]:
    """Returns the list's row for one measurement."""
    found = item.measurement
    return {
        "id": item.id,
        "added": item.added,
        "source": item.source,
        "name": found.name,
        "design": found.design,
        "device": found.device,
        "runtime": found.runtime,
        "runtime_version": found.runtime_version,
        "threads": found.threads,
        "ttft_p50_s": found.percentile("ttft", 0.5),
        "tpot_p50_s": None if found.encodes else found.percentile("tpot", 0.5),
        "tpot_p99_s": None if found.encodes or found.steps_per_sample > 1 else found.percentile("tpot", 0.99),
        "peak_memory_bytes": found.peak_memory_bytes,
        "clean": found.clean,
        "reasons": found.reasons,
    }


@app.command("show")
def one(
    identity: Annotated[str, typer.Argument(help="A measurement's id, or its first digits.")],
    as_json: options.AsJson = False,
) -> None:
    """Show one measurement; --json prints every sample and reading."""
    item = answers.MeasurementStore().get(identity)
    if as_json:
        show.json_of(item.to_data())
        return
    show.console.print(f"{item.id}  measured {item.added} by {item.source}", highlight=False)
    measurement_table(item.measurement)


@app.command("export")
def export(
    out: Annotated[Path, typer.Argument(help="The file to write, JSON lines.")],
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of measurements. Default: all.")] = None,
    device: Annotated[str | None, DEVICE] = None,
    runtime: Annotated[str | None, RUNTIME] = None,
    as_json: options.AsJson = False,
) -> None:
    """Write measurements to a file that another machine can import."""
    store = answers.MeasurementStore()
    items = [store.get(name) for name in ids] if ids else store.entries(device=device, runtime=runtime)
    show.counts({"exported": store.export(out, items), "file": str(out)}, as_json)


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(help="A kit's results, llama-bench JSON, or a file from 'measurements export'."),
    ],
    run: Annotated[
        Path | None, typer.Option(help="Folder of the kit's run. Default: where it was when the kit was packed.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="For llama-bench: the measured model (a GGUF file, a known name, a spec).")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="For llama-bench: the device. Default: the processor or GPU named in the file.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="For llama-bench: weight format, if neither the file nor the model states it.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Add measurements made elsewhere; existing ones are not changed.

    Reads kit-results.json (chipwise kit), the output of llama-bench -o json (with --model), and files from 'chipwise
    measurements export'. Imported measurements are kept under the device's name and never change this machine's own
    profile.
    """
    found = api.import_measurements(file, run=run, model=model, device=device, weights=weights)
    where = {} if found.run is None else {"run": str(found.run)}
    notes = {"notes": list(found.notes)} if found.notes and as_json else {}
    show.counts({"imported": found.new, "file": str(file), **where, **notes}, as_json)
    if not as_json:
        for note in found.notes:
            say(note)
        if found.run is not None:
            say(f"the run uses them when you continue it: chipwise search RUN_FILE --out {found.run} --resume")


@app.command("delete")
def delete(
    ids: Annotated[list[str], typer.Argument(help="Ids, or their first digits.")],
    as_json: options.AsJson = False,
) -> None:
    """Delete measurements."""
    show.counts({"deleted": answers.MeasurementStore().delete(ids)}, as_json)

"""``chipwise estimate``: cost of a model on a chip."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, graph_files, image_size, options, quality, whole_runs
from chipwise.cli.output import json_of, notices, print_table, progress_bar, put, refuse, say, say_notes
from chipwise.core import units
from chipwise.core.csvfile import own_columns
from chipwise.core.layout import Column, Table, numeric

TABLE_ONLY = ("table", "out", "as_json")
SHARE_SAID = 0.005  # share of TPOT below which waiting is not shown


def command(
    context: typer.Context,
    model: Annotated[str | None, options.MODEL] = None,
    device: Annotated[
        str,
        typer.Option(
            help="A device of `chipwise devices` (or a part of it: apple-m3-max:cpu), a YAML file, `all`, or `here`.",
            autocompletion=completion.devices,
        ),
    ] = "h100-sxm",
    memory: options.Memory = None,
    runtime: options.Runtime = None,
    prompt: options.Prompt = 1024,
    prompt_p99: Annotated[
        int | None, typer.Option(help="P99 of tokens per prompt, if prompts differ (--prompt is then the P50).", min=1)
    ] = None,
    new: options.New = 128,
    images: options.Images = 0,
    size: options.ImageSize = image_size.DEFAULT,
    audio: options.Audio = None,
    like: options.Like = None,
    batch: options.Batch = 1,
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    gpu_layers: Annotated[
        str | None, typer.Option(help="Layers on the card (llama.cpp's -ngl), or auto; all others run on its host.")
    ] = None,
    n_cpu_moe: Annotated[int | None, typer.Option(help="Number of layers with experts on the host.", min=0)] = None,
    host: Annotated[
        str | None, typer.Option(help="The card's host: a processor, or its memory bandwidth, such as '60 GB/s'.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Instead of one model: estimate every row of this CSV file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --table: the file to write, with predictions added.")] = None,
    ambient: options.Ambient = None,
    electricity: options.Electricity = None,
    buy: options.BuyOrList = None,
    years: options.Years = 4.0,
    use: options.Use = 1.0,
    power: options.OwnPower = None,
    train_tokens: options.TrainTokens = None,
    shape: options.Shape = None,
    value: options.Value = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="Also print every kernel with its time.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Estimate TTFT, TPOT, memory, energy and price of serving a model; --kernels shows every kernel.

    If the model does not fit in memory, the first line says so and names what would fit; the predicted times then
    assume that it fitted, and the exit code is 2.

    One device: chipwise estimate meta-llama/Llama-3.1-8B --device h100-sxm --weights fp8 --batch 16

    All devices: chipwise estimate meta-llama/Llama-3.1-8B --device all

    Many rows: chipwise estimate --table rows.csv --out out.csv

    Quality: chipwise estimate meta-llama/Llama-3.1-8B --train-tokens 2T

    Images: chipwise estimate Qwen/Qwen2.5-VL-7B-Instruct --images 2 --image-size 1280x720 --prompt 100

    Speech, with its real-time factor: chipwise estimate openai/whisper-large-v3 --device rtx-4090 --new 100

    An ONNX file or a PyTorch module: chipwise estimate package.module:build --device l4 --shape x=1,3,224,224

    Separate commands: training-step, pictures (diffusion), parts (a phone's NPU), candidates.

    Columns of --table: row_id, model, device, runtime, weights, kv, tp, pp, ep, dp, batch, isl, osl, images,
    image_size, audio_s.
    """
    if table is not None:
        others = [name for name in context.params if name not in (*TABLE_ONLY, "model")]
        refuse(context, *others, why="cannot be combined with --table; use the column of that name")
        if model is not None:
            raise typer.BadParameter("give either a MODEL or a --table, not both")
        if out is None:
            raise typer.BadParameter("--table needs --out, the file to which the predictions are written")
        _answer_table(table, out, as_json=as_json)
        return
    if model is None:
        raise typer.BadParameter("give a MODEL, or a file with --table")
    refuse(context, "out", why="only applies with --table")
    model, device = answers.alike.named(model, like), completion.sized(device, memory)
    if graph_files.estimated(context, model, as_json=as_json):
        return
    if audio is not None and not api.resolve(model).towers:
        refuse(context, "prompt", why="is for models that read text; give the length of the sound with --audio")
    if whole_runs.answered(context, model, as_json=as_json):
        return
    sizes: dict[str, Any] = {"weights": weights, "kv": kv, "tp": tp, "pp": pp, "ep": ep, "dp": dp}
    sizes |= {"runtime": runtime, "prompt": prompt, "prompt_p99": prompt_p99, "new": new, "batch": batch}
    sizes |= {"audio_s": audio, "ambient": ambient}
    if images:
        sizes |= {"images": images, "image_size": image_size.parse(size)}
    else:
        refuse(context, "size", why="needs --images")
    sizes |= {"gpu_layers": _layers(gpu_layers), "n_cpu_moe": n_cpu_moe, "host": host}
    own = _own(context, device, electricity=electricity, buy=buy, years=years, use=use, power=power)
    if device == "all":
        rows = api.estimate(model, devices="all", **sizes)
        json_of(quality.with_quality(list(rows), model, train_tokens)) if as_json else _print_devices(model, rows)
        quality.print_quality(model, None if as_json else train_tokens)
        return
    found = api.estimate(model, device=own or device, hypothetical=True, **sizes)
    if as_json:
        json_of(quality.with_quality(found, model, train_tokens))
    else:
        _print(model, found, kernels=kernels)
        if own is not None and own.price is not None:
            say(f"note: prices are for a machine that you own, {own.price.source}")
    quality.print_quality(model, None if as_json else train_tokens)
    if found.does_not_fit:
        raise typer.Exit(2)


def _own(context: typer.Context, device: str, *, electricity: str | None, **texts: Any) -> answers.DeviceProfile | None:
    """Returns the device with the hourly price of the user's own machine; None if no electricity tariff is given."""
    if electricity is None:
        refuse(context, *texts, why="needs --electricity, the tariff that you pay for the machine's power")
        return None
    if device == "all":
        refuse(context, "electricity", why="gives the price of one device at a time; name one with --device")
    return api.owned(device, electricity=electricity, **texts)


def _answer_table(table: Path, out: Path, *, as_json: bool) -> None:
    started = time.perf_counter()
    with progress_bar("estimating", quiet=as_json) as advance:
        count, failed = api.estimate_table(table, out, on_progress=advance)
    spent_s = time.perf_counter() - started
    if as_json:
        told = {"rows": count, "failed": failed, "out": str(out)}
        json_of({**told, "seconds": spent_s, "rows_per_s": count / spent_s})
    else:
        rate = f"{count / spent_s:,.0f} rows/s"
        notices.print(f"{count - failed} of {count} rows estimated, {failed} with an error, {rate}; wrote {out}")
        if own := own_columns(table, (*answers.ASKED, *answers.ALSO_ASKED, *answers.ANSWERED)):
            notices.print(f"note: columns copied unchanged: {', '.join(own)}")


def _layers(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


def _between(value: answers.Predicted, kind: str) -> str:
    return units.span(value.value, value.low, value.high, kind)


def memory_said(peak_bytes: float, parts: Mapping[str, float]) -> str:
    """Returns text with a device's peak memory and the size of each part of it."""
    held = ", ".join(f"{name} {units.show(size, 'bytes')}" for name, size in parts.items())
    return units.show(peak_bytes, "bytes") + (f" ({held})" if held else "")


def _print(model: str, found: api.CostEstimate, *, kernels: bool) -> None:
    several = f"{found.devices} x " if found.devices > 1 else ""
    where = f"{several}{found.device}, {found.served_as}"
    if found.does_not_fit:
        say(f"{model} on {where}: {found.does_not_fit}", bold=True)
        say(f"hypothetical, as if it fitted: {found.provenance}, 90 % intervals")
    else:
        say(f"{model} on {where}: {found.provenance}, 90 % intervals", bold=True)
    table = Table(columns=[Column(), Column(prose=True)])
    if found.parameters_said:
        table.add("parameters", found.parameters_said)
    generates, read = "tpot_p50" in found.metrics, read_by(found)
    all_read = "tokens read" if read == "token" else f"{read}s"
    rate = "rate" if read == "token" else f"{read}_rate"
    first = ("TTFT of one sound" if "rtf" in found.metrics else "TTFT of one prompt") if generates else None
    for name, label, kind in (
        ("ttft_p50", first or f"pass over all {'texts' if read == 'token' else f'{read}s'}", "time"),
        ("ttft_p99", "  P99", "time"),
        ("tpot_p50", "TPOT", "time"),
        ("tpot_p99", "  P99", "time"),
        ("ttft_sustained", "TTFT under long load", "time"),
        ("tpot_sustained", "TPOT under long load", "time"),
        ("itl_p99", "gap between tokens, P99", "time"),
        ("decode_tokens_per_s", "decode, each request", "rate"),
        ("image_s", "seconds per image", "time"),
        ("sound_s", "seconds per sound", "time"),
        ("request_s", "seconds per request", "time"),
        ("rtf", "real-time factor", "count"),
        ("throughput", "throughput, all requests" if generates else all_read, rate),
        ("joules_per_image", "energy per image", "energy"),
        ("joules_per_sound", "energy per sound", "energy"),
        ("joules_per_request", "energy per request", "energy"),
        ("joules_per_token", "energy per token", "energy"),
        ("served_power_w", "power under steady load", "power"),
        ("served_joules_per_token", "energy per token, steady load", "energy"),
        ("usd_per_1k_input_tokens", "price of input", "token_price"),
        ("usd_per_1k_output_tokens", "price of output", "token_price"),
    ):
        if name in found.metrics:
            table.add(label, _between(found.metrics[name], kind))
        if name == "tpot_p99" and found.prompts_wait_s > SHARE_SAID * found.tpot_s:
            waited, step = (units.show(value, "time") for value in (found.prompts_wait_s, found.decode_step_s or 0.0))
            table.add("  of which", f"{waited} waiting for other requests' prompts; a decode step takes {step}")
    table.add("memory per device", memory_said(found.peak_memory_bytes, found.memory_bytes))
    label = "decode is bound by" if generates else "pass is bound by"
    if found.bound:
        table.add(label, found.bound.value)
    for phase in found.mfu:
        mfu, mbu = (units.show(used[phase], "share", digits=2) for used in (found.mfu, found.mbu))
        table.add(phase, f"MFU {mfu}, MBU {mbu}")
    print_table(table)
    for line in answers.passes(found) if kernels else ():
        put(line)
    say_notes(found.notes)


def read_by(found: api.CostEstimate) -> str:
    """Returns the unit to which a request's cost refers: ``token``, ``image``, ``sound`` or ``request``."""
    return next((name for name in ("image", "sound", "request") if f"{name}_s" in found.metrics), "token")


def energy_of(found: api.CostEstimate) -> answers.Predicted | None:
    """Energy per token, image or sound; None if unknown."""
    return found.metrics.get(f"joules_per_{read_by(found)}")


def _print_devices(model: str, rows: Sequence[answers.DeviceAnswer]) -> None:
    found = [(row.device, row.estimate) for row in rows if row.estimate is not None]
    main = next((_main(cost) for _, cost in found), "tpot_p50")
    name = main.partition("_")[0].upper()
    each = next((read for _, cost in found if (read := read_by(cost)) != "token"), "token")
    times = ("TTFT", "TPOT", "tok/s each", f"90 % of {name}", f"{each}s/s")
    columns = numeric(*times, (f"energy/{each}", 4), ("$/M in", 3), "$/M out")
    table = Table(
        columns=[Column(head="device"), *columns, Column(head="bound", drop=2), Column(head="served as", drop=1)],
        title=f"{model}: predicted, {name} with its 90 % interval; {_runtimes(found)}",
    )
    served = {(cost.runtime, cost.weights) for _, cost in found}
    for device, cost in found:
        values, best = cost.metrics, cost.metrics[main]
        energy = energy_of(cost)
        table.add(
            device,
            units.show(cost.ttft_s, "time"),
            units.show(cost.tpot_s, "time") if "tpot_p50" in values else "",
            decoded(cost),
            units.interval(best.value, best.low, best.high, "time"),
            units.number(values["throughput"].value),
            units.show(energy.value, "energy") if energy else "–",
            *million_tokens(cost),
            cost.bound.value if cost.bound else "",
            f"{cost.runtime}, {cost.weights}" if len(served) > 1 else "",
        )
    print_table(table)
    for row in rows:
        if row.estimate is None:
            say(f"{row.device}: {row.problem}")


def decoded(found: api.CostEstimate) -> str:
    """Text with the decoded tokens per second of one request; empty if the model does not decode."""
    rate = found.metrics.get("decode_tokens_per_s")
    return "" if rate is None else units.number(rate.value)


def million_tokens(found: api.CostEstimate) -> tuple[str, str]:
    """Text with dollars per million input and output tokens; a dash if there is no price."""
    prices = [found.metrics.get(f"usd_per_1k_{side}_tokens") for side in ("input", "output")]
    read, written = (units.show(1e3 * price.value, "price") if price else "–" for price in prices)
    return read, written


def _runtimes(found: Sequence[tuple[str, api.CostEstimate]]) -> str:
    """Text with the runtime and weight format if all estimates share them; otherwise it says that they differ."""
    names = {f"{cost.runtime}, {cost.weights}" for _, cost in found}
    return f"all in {names.pop()}" if len(names) == 1 else "each device with its usual runtime and format"


def _main(found: api.CostEstimate) -> str:
    """Metric by which estimates are sorted: TPOT, or TTFT if the model generates no tokens."""
    return "tpot_p50" if "tpot_p50" in found.metrics else "ttft_p50"

"""``chipwise plan``: finds the cheapest fleet for a load; checks plans against load tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options
from chipwise.cli.output import json_of, notices, print_table, progress_bar, put, refuse, say, say_notes
from chipwise.core import units
from chipwise.core.files import check_output
from chipwise.core.layout import Column, Table, numeric
from chipwise.errors import counted

LIMITED = (
    "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "itl_p50", "itl_p99", "e2e_p50", "e2e_p95",
    "e2e_p99",
)  # fmt: skip
ABOUT_OUTPUT = ("out", "resume", "results", "html", "as_json")


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A model, or a YAML file that states model, load and limits; `check PLAN` checks a plan.",
            autocompletion=completion.models,
        ),
    ],
    file: Annotated[Path | None, typer.Argument(help="With `check`: the file of a plan.")] = None,
    rate: options.Rate = None,
    trace: options.Trace = None,
    prompt: options.MeanPrompt = 1024,
    new: options.MeanNew = 128,
    spread: options.Spread = 0.0,
    shared_tokens: options.SharedTokens = 0,
    prefixes: options.Prefixes = 1,
    ttft_p50: Annotated[str | None, typer.Option(help="Limit on the median time to first token (TTFT).")] = None,
    ttft_p95: Annotated[str | None, typer.Option(help="Limit on the P95 of TTFT.")] = None,
    ttft_p99: Annotated[str | None, typer.Option(help="Limit on the P99 of TTFT, such as 500ms.")] = None,
    tpot_p50: Annotated[str | None, typer.Option(help="Limit on the median time per output token (TPOT).")] = None,
    tpot_p95: Annotated[str | None, typer.Option(help="Limit on the P95 of TPOT.")] = None,
    tpot_p99: Annotated[str | None, typer.Option(help="Limit on the P99 of TPOT, such as 40ms.")] = None,
    itl_p50: Annotated[str | None, typer.Option(help="Limit on the median gap between two tokens.")] = None,
    itl_p99: Annotated[str | None, typer.Option(help="Limit on the P99 gap between tokens, such as 100ms.")] = None,
    e2e_p50: Annotated[str | None, typer.Option(help="Limit on the median end-to-end time.")] = None,
    e2e_p95: Annotated[str | None, typer.Option(help="Limit on the P95 of the end-to-end time.")] = None,
    e2e_p99: Annotated[str | None, typer.Option(help="Limit on the P99 of the end-to-end time.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Devices to choose from: a,b,c, or cloud machines such as p5.48xlarge. Default: all with a price."
        ),
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="Runtimes to choose from. Default: each device's own.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight formats to choose from. Default: bf16, fp8.")] = None,
    kv: options.Kv = None,
    tp: Annotated[str, typer.Option(help="Tensor-parallel degrees to choose from.")] = "1,2,4,8",
    pp: Annotated[str, typer.Option(help="Pipeline-parallel degrees to choose from.")] = "1",
    ep: Annotated[
        str | None, typer.Option(help="Expert-parallel degrees. Default (mixtures of experts): 1, and --tp times --dp.")
    ] = None,
    dp: Annotated[str, typer.Option(help="Data-parallel degrees of attention (mixtures of experts).")] = "1",
    draft: Annotated[
        list[str] | None,
        typer.Option(help="Speculative decoding to consider: MODEL:TOKENS:ACCEPTANCE; `ngram` needs no model."),
    ] = None,
    fleets: Annotated[
        str,
        typer.Option(help="'together', or 'together,apart' to consider separate pools for prefill and decode too."),
    ] = "together",
    link: options.Link = None,
    slow_share: options.SlowShare = None,
    slow_factor: options.SlowFactor = None,
    network_p50: options.NetworkP50 = None,
    network_p99: options.NetworkP99 = None,
    price: Annotated[list[str] | None, typer.Option(help="Replace a list price, such as h100-sxm='1.9 USD/h'.")] = None,
    max_devices: Annotated[int, typer.Option(help="Maximum number of devices in a plan.", min=1)] = 1024,
    power: Annotated[str | None, typer.Option(help="Limit on the power of all boards together, such as 20kW.")] = None,
    budget: Annotated[str | None, typer.Option(help="Limit on the price of all devices, such as '10 USD/h'.")] = None,
    confidence: Annotated[float, typer.Option(help="Probability with which all limits must hold.")] = 0.9,
    arrivals: options.Gaps = options.Arrivals.POISSON,
    burstiness: options.Burstiness = 1.0,
    requests: Annotated[int, typer.Option(help="Number of requests to replay per engine.", min=50)] = 400,
    seed: Annotated[int, typer.Option(help="Seed of the random load.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the unfinished plan in --out.")] = False,
    results: Annotated[Path | None, typer.Option(help="With `check`: result file of a load test.")] = None,
    html: options.Page = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the cheapest fleet that serves a load within limits on percentiles.

    chipwise plan meta-llama/Llama-3.1-8B --rate 20/s --prompt 1500 --new 250 --ttft-p99 500ms --tpot-p99 40ms

    Separate pools for prefill and decode: chipwise plan MODEL --rate 20/s --fleets together,apart

    Speculative decoding: chipwise plan Qwen/Qwen3-32B --rate 2/s --draft Qwen/Qwen3-0.6B:4:0.7 --draft ngram:4:0.4

    Model, load and limits in a file: chipwise plan question.yaml

    Check a plan against a load test: chipwise plan check plan.json --results vllm-bench.json
    """
    if model == "check" and file is not None:
        _check(file, results, as_json)
        return
    if file is not None:
        raise typer.BadParameter("name one MODEL; a second name is for `plan check PLAN`")
    refuse(context, "results", why="only applies to `plan check`")
    if resume and out is None:
        raise typer.BadParameter("--resume needs --out, the file of the plan")
    in_file = model.endswith((".yaml", ".yml")) and rate is None and trace is None
    if in_file:
        asked = [name for name in context.params if name not in ("model", "file", *ABOUT_OUTPUT)]
        refuse(context, *asked, why="is already set in the question file")
    if trace is not None:
        refuse(context, *options.OF_MADE_LOADS, why="cannot be combined with --trace")
    for path in filter(None, (html, out)):
        check_output(path)
    texts = (ttft_p50, ttft_p95, ttft_p99, tpot_p50, tpot_p95, tpot_p99, itl_p50, itl_p99, e2e_p50, e2e_p95, e2e_p99)
    limits = {name: text for name, text in zip(LIMITED, texts, strict=True) if text is not None}
    with progress_bar("planning", quiet=as_json) as advance:
        found = api.plan(model, out=out, resume=resume, on_progress=advance) if in_file else api.plan(
            model, rate=rate, trace=trace, prompt=prompt, new=new, spread=spread, shared_tokens=shared_tokens,
            prefixes=prefixes, limits=limits, devices=_names(device), runtimes=_names(runtime), weights=_names(weights),
            tp=_numbers(tp, "--tp"), pp=_numbers(pp, "--pp"), ep=None if ep is None else _numbers(ep, "--ep"),
            dp=_numbers(dp, "--dp"), speculation=draft or [], fleets=_names(fleets) or [],
            link=link, prices=_prices(price or []), max_devices=max_devices,
            power=power, budget=budget, confidence=confidence, arrivals=arrivals.value, burstiness=burstiness,
            disturbances=options.disturbances(slow_share, slow_factor, network_p50, network_p99),
            requests=requests, kv=kv, seed=seed, out=out, resume=resume, on_progress=advance,
        )  # fmt: skip
    if html is not None:
        answers.write_plan_page(found, html)
        notices.print(f"wrote {html}")
    if as_json:
        json_of(found.to_dict())
        return
    _print(found)
    if out is not None:
        notices.print(f"wrote {out}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option}: must be whole numbers, such as 1,2,4, not {text!r}") from None


def _prices(given: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or name in found:
            why = "a second price for a device:" if equals else "must be DEVICE=PRICE, such as l4='0.5 USD/h', not"
            raise typer.BadParameter(f"--price: {why} {text!r}")
        found[name] = value
    return found


def _check(file: Path, results: Path | None, as_json: bool) -> None:
    if results is None:
        raise typer.BadParameter("plan check needs the file of one plan and --results FILE")
    found = answers.load_tests.check(file, results)
    if as_json:
        json_of(found)
        return
    say(found.headline(), bold=True)
    table = Table(columns=[Column(), *numeric("promised", "90 %", "measured"), Column(prose=True)])
    for each in found.rows_held:
        table.add(
            each.metric,
            units.show(each.promised, "time"),
            units.interval(each.promised, each.low, each.high, "time"),
            units.show(each.measured, "time"),
            answers.load_tests.verdict(each),
        )
    print_table(table)
    if found.rate_measured_per_s is not None and found.rate_planned_per_s is not None:
        planned, measured = (units.number(each) for each in (found.rate_planned_per_s, found.rate_measured_per_s))
        say(f"planned for {planned} requests/s, tested with {measured}")
    if found.step_scale is not None:
        more = "" if found.request_s is None else f" --request-time '{units.show(found.request_s, 'time')}'"
        say(f"to use this test's factors: chipwise simulate ... --step-scale {found.step_scale:.3f}{more}")


def _print(found: answers.FleetPlan) -> None:
    say(found.headline(), bold=True)
    columns = numeric("$/h", ("needed", 2), "P99 TTFT", ("P99 TPOT", 1), ("P99 ITL", 1), "chance", ("saturates at", 4))
    columns += numeric(("$/M in", 5), ("$/M out", 3), ("J/token", 6))
    table = Table(columns=[Column(head="fleet", prose=True), *columns, Column(head="bottleneck", drop=7)])
    for option in found.options:
        times: list[Any] = [option.times.get(name) for name in ("ttft_p99", "tpot_p99", "itl_p99")]
        table.add(
            f"{option.label} ({option.about_margin})" if option.pays_for_certainty else option.label,
            "unknown" if option.usd_per_h is None else f"{option.usd_per_h:,.2f}",
            "–" if option.needed_devices is None else f"{option.needed_devices:,}",
            *("–" if each is None else units.show(each.value, "time") for each in times),
            units.show(option.chance, "share", digits=2),
            f"{units.number(option.saturation_per_s)}/s",
            *(
                "–" if value is None else units.show(value, "price")
                for value in (option.usd_per_million_input_tokens, option.usd_per_million_output_tokens)
            ),
            "–" if option.joules_per_output_token is None else units.show(option.joules_per_output_token, "energy"),
            option.bottleneck,
        )
    print_table(table)
    for left in found.left_out if found.question.devices else ():
        say(f"not {left.device}: {left.reason}")
    if found.left_out and not found.question.devices:
        say(
            f"left out: {counted(len(found.left_out), 'other device')} with a price; --json lists the reasons, "
            "--device NAME selects one"
        )
    front = [option.label for option in found.front]
    say(f"Pareto front of price and P99 end-to-end time: {'; '.join(front)}")
    for each in found.limit_prices:
        if each.saved_usd_per_h:
            say(f"without the limit {each.limit}: {each.without}, which costs ${each.saved_usd_per_h:,.2f}/h less")
    for line in (*found.best.commands, *found.best.deployment.splitlines()):
        put(line)
    unknown = [option.device for option in found.options if option.usd_per_h is None]
    if unknown:
        say(f"note: the price of {', '.join(unknown)} is unknown; give it with --price DEVICE=PRICE")
    say_notes(found.notes)
    say(
        f"note: {found.best.provenance}; times start when the engine receives a request; 90 % intervals; prices "
        f"are list prices"
    )

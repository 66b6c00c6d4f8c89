"""``chipwise simulate``: simulates one deployment under load."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import completion, options
from chipwise.cli.output import json_of, notices, print_table, progress_bar, put, refuse, say, say_notes
from chipwise.core import units
from chipwise.core.files import check_output
from chipwise.core.layout import Column, Table, numeric
from chipwise.errors import counted


class Batching(StrEnum):
    """How requests to an encoder are batched."""

    TOKENS = "tokens"
    REQUESTS = "requests"


def command(
    context: typer.Context,
    model: options.Model,
    device: Annotated[
        str, typer.Option(help="A device of `chipwise devices`, or a YAML file.", autocompletion=completion.devices)
    ] = "h100-sxm",
    rate: options.Rate = None,
    clients: Annotated[
        int | None, typer.Option(help="Closed loop: number of clients, instead of a rate.", min=1)
    ] = None,
    think: Annotated[str, typer.Option(help="Pause of a client before its next request.")] = "0 s",
    trace: options.Trace = None,
    prompt: options.MeanPrompt = 1024,
    new: options.MeanNew = 128,
    spread: options.Spread = 0.0,
    shared_tokens: options.SharedTokens = 0,
    prefixes: options.Prefixes = 1,
    arrivals: options.Gaps = options.Arrivals.POISSON,
    burstiness: options.Burstiness = 1.0,
    requests: Annotated[int, typer.Option(help="Requests replayed for each seed.", min=1)] = 1000,
    runtime: options.Runtime = None,
    weights: options.Weights = None,
    kv: options.Kv = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    replicas: Annotated[int, typer.Option(help="Number of replicas behind a router.", min=1)] = 1,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum tokens per step.", min=1)] = None,
    max_sequences: Annotated[int | None, typer.Option(help="Maximum sequences per step.", min=1)] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Cache shared prompt prefixes.")] = True,
    timeout: Annotated[str | None, typer.Option(help="Time after which clients give up, such as 60s.")] = None,
    request_time: Annotated[str, typer.Option(help="Time that HTTP and tokenizer add to a request.")] = "0 s",
    step_scale: Annotated[
        float, typer.Option(help="Factor on all step times, as `plan check` prints it.", min=0.01)
    ] = 1.0,
    drafted: Annotated[int, typer.Option(help="Speculative decoding: drafted tokens per step.", min=0)] = 0,
    acceptance: Annotated[
        float, typer.Option(help="Probability that a drafted token is accepted.", min=0, max=1)
    ] = 0.7,
    draft: Annotated[str | None, typer.Option(help="The draft model; `ngram` (the default) needs no model.")] = None,
    batching: Annotated[
        Batching, typer.Option(help="Batching of text encoders: packed tokens or padded requests.")
    ] = Batching.TOKENS,
    decode_device: Annotated[str | None, typer.Option(help="Decode on this device, prefill on --device.")] = None,
    decode_replicas: Annotated[int, typer.Option(help="Number of decode replicas.", min=1)] = 1,
    decode_tp: Annotated[int, typer.Option(help="Tensor-parallel degree of the decode devices.", min=1)] = 1,
    link: options.Link = None,
    slow_share: options.SlowShare = None,
    slow_factor: options.SlowFactor = None,
    network_p50: options.NetworkP50 = None,
    network_p99: options.NetworkP99 = None,
    seeds: Annotated[int, typer.Option(help="Number of random loads to simulate.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the first random load.", min=0)] = 0,
    html: options.Page = None,
    as_json: options.AsJson = False,
) -> None:
    """Simulate one deployment under load: TTFT, TPOT, gaps between tokens, end-to-end times, queue, KV cache.

    chipwise simulate meta-llama/Llama-3.1-8B --device rtx-4090 --runtime vllm --weights fp8 --rate 4/s --prompt 1500

    Closed loop: chipwise simulate Qwen/Qwen3-8B --device l40s --clients 16

    Prefill and decode apart: chipwise simulate Qwen/Qwen3-32B --device h100-sxm --decode-device h200-sxm --rate 2/s
    """
    if trace is not None:
        refuse(context, *options.OF_MADE_LOADS, "requests", "seeds", "seed", why="cannot be combined with --trace")
    if clients is not None:
        refuse(context, "arrivals", "burstiness", why="only applies to requests that arrive at a --rate")
    if not drafted:
        refuse(
            context, "acceptance", why="only applies to speculative decoding; give the number of tokens with --drafted"
        )
    if html is not None:
        check_output(html)
    with progress_bar("replaying", quiet=as_json) as advance:
        found = api.simulate(
            model, device=device, rate=rate, clients=clients, think_s=units.parse_field(think, "time", "--think"),
            trace=trace, prompt=prompt, new=new, spread=spread, shared_tokens=shared_tokens, prefixes=prefixes,
            arrivals=arrivals.value, burstiness=burstiness, requests=requests, runtime=runtime, weights=weights, kv=kv,
            tp=tp, pp=pp, ep=ep, dp=dp, replicas=replicas, max_tokens=max_tokens, max_sequences=max_sequences,
            prefix_cache=prefix_cache,
            timeout_s=None if timeout is None else units.parse_field(timeout, "time", "--timeout"),
            request_s=units.parse_field(request_time, "time", "--request-time"), step_scale=step_scale,
            drafted=drafted, acceptance=acceptance, draft=draft, batching=batching.value,
            decode_device=decode_device, decode_replicas=decode_replicas, decode_tp=decode_tp, link=link,
            disturbances=options.disturbances(slow_share, slow_factor, network_p50, network_p99),
            seeds=seeds, seed=seed, on_progress=advance,
        )  # fmt: skip
    if html is not None:
        answers.write_simulation(found, html)
        notices.print(f"wrote {html}")
    if as_json:
        json_of(found)
        return
    _print(model, found)


def _print(model: str, found: answers.Simulation) -> None:
    say(f"{model} on {found.headline()}", bold=True)
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "gaps between tokens", "e2e": "end to end", "queue": "waiting"}
    table = Table(
        columns=[Column(), *numeric(("mean", 2), "p50", ("p90", 3), ("p95", 4), "p99"), Column(head="90 % of P99")],
        title=f"{found.provenance}, {counted(found.requests, 'request')}",
    )
    for measure in answers.MEASURES:
        if f"{measure}_p99" in found.times:
            worst = found.times[f"{measure}_p99"]
            cells = [units.show(found.times[f"{measure}_{name}"].value, "time") for name in answers.STATISTICS]
            table.add(names[measure], *cells, units.interval(worst.value, worst.low, worst.high, "time"))
    print_table(table)
    more = Table(columns=[Column(), Column(prose=True)])
    served = f"{units.number(found.requests_per_s)} requests/s, {units.show(found.output_tokens_per_s, 'rate')}"
    more.add("served", served + (f"; {found.failed:,} gave up" if found.failed else ""))
    more.add(
        "in flight",
        f"{units.number(found.mean_in_flight)} on average; the engine runs steps "
        f"{units.show(found.busy_share, 'share')} of the time",
    )
    if found.cache_tokens:
        more.add("cache", f"{units.number(found.cache_tokens)} positions a replica; {found.preemptions:,} preemptions")
    if (
        found.usd_per_h is not None
        and found.usd_per_million_output_tokens is not None
        and found.usd_per_million_input_tokens is not None
    ):
        prices = (
            units.show(value, "price")
            for value in (found.usd_per_million_input_tokens, found.usd_per_million_output_tokens)
        )
        more.add("price", f"${found.usd_per_h:,.2f}/h; {' and '.join(prices)} per million input and output tokens")
    elif found.usd_per_h is None:
        more.add("price", "unknown")
    if found.joules_per_output_token is not None:
        more.add("energy", f"{units.show(found.joules_per_output_token, 'energy')} per output token")
    print_table(more)
    for line in found.deployment.splitlines():
        put(line)
    say_notes(found.notes)

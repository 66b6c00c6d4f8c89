"""Public functions for models under load: they simulate a deployment, or find the cheapest fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from chipwise.core import units
from chipwise.core.arguments import public, stated_by
from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.design.fleet.agent_loop import AgentLoop, LoopCost, price_loop, read_loop
from chipwise.design.fleet.answer import FleetPlan
from chipwise.design.fleet.bill import Bill, FleetToBill, billed, fleet_of, growth_of
from chipwise.design.fleet.offered_load import OfferedLoad
from chipwise.design.fleet.plan_files import plan_question, read_plan
from chipwise.design.fleet.question import (  # fmt: skip
    FleetQuestion,
    above_zero,
    disturbances_of,
    question_from,
    read_question,
)
from chipwise.design.fleet.simulate_model import Pools, Scheduling, simulate_model
from chipwise.design.fleet.simulating import Simulation
from chipwise.design.models import served
from chipwise.errors import SpecError, counted
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.cost.ownership import dollars
from chipwise.predict.load.load import Load
from chipwise.predict.served.deployment import Deployment

DEPLOYED = ("device", "runtime", "weights", "kv", "tp", "pp", "ep", "dp")
OFFERED = (
    "rate", "clients", "think_s", "trace", "prompt", "new", "spread", "shared_tokens", "prefixes", "arrivals",
    "burstiness", "requests", "seeds", "seed",
)  # fmt: skip
PLANNED = (
    "rate", "trace", "prompt", "new", "spread", "shared_tokens", "prefixes", "limits", "classes", "devices", "runtimes",
    "weights", "tp", "pp", "ep", "dp", "speculation", "fleets", "link", "prices", "max_devices", "power", "budget",
    "confidence", "arrivals", "burstiness", "requests", "kv", "disturbances", "seed",
)  # fmt: skip

serve = public(served.serve)


@public
@stated_by(lambda given: "the deployment" if given.get("deployment") is not None else None, *DEPLOYED)
@stated_by(lambda given: "the load" if given.get("load") is not None else None, *OFFERED)
def simulate(
    model: str | Path | ArchSpec,
    deployment: Deployment | None = None,
    load: OfferedLoad | Load | None = None,
    *,
    device: str | Path = "h100-sxm",
    rate: float | str | None = None,
    clients: int | None = None,
    think_s: float = 0.0,
    trace: str | Path | None = None,
    prompt: int = 1024,
    new: int = 128,
    spread: float = 0.0,
    shared_tokens: int = 0,
    prefixes: int = 1,
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson",
    burstiness: float = 1.0,
    requests: int = 1000,
    runtime: str | None = None,
    weights: str | None = None,
    kv: str | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    replicas: int = 1,
    max_tokens: int | None = None,
    max_sequences: int | None = None,
    prefix_cache: bool = True,
    timeout_s: float | None = None,
    request_s: float = 0.0,
    step_scale: float = 1.0,
    drafted: int = 0,
    acceptance: float = 0.7,
    draft: str | None = None,
    batching: Literal["tokens", "requests"] = "tokens",
    decode_device: str | None = None,
    decode_replicas: int = 1,
    decode_tp: int = 1,
    link: str | None = None,
    disturbances: Mapping[str, object] | None = None,
    seeds: int = 2,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Predicts latencies of one deployment under load by replaying its scheduler with predicted step times.

    >>> import chipwise
    >>> found = chipwise.simulate("Qwen/Qwen3-0.6B", device="l4", rate="2/s", requests=100, seeds=1)
    >>> found.times["ttft_p99"].low < found.times["ttft_p99"].value < found.times["ttft_p99"].high
    True

    Args:
        model: See :func:`estimate`.
        deployment: Device, runtime, formats and degrees of parallelism as one value, instead of the separate arguments.
        load: The load as one value, instead of ``rate``, ``clients`` or ``trace`` and the arguments that describe
            requests.
        device: A data sheet's name, alias or file.
        rate: Requests per second: ``8``, ``"8/s"``, ``"90/min"``.
        clients: Number of clients in a closed loop, each sending one request after another; replaces ``rate``.
        think_s: Seconds that a client waits before its next request.
        trace: A file of requests (JSON lines or CSV); replaces ``rate`` and the arguments for sizes of requests.
        prompt: Mean prompt tokens.
        new: Mean new tokens (not for text encoders).
        spread: Coefficient of variation of prompt and new tokens (lognormal).
        shared_tokens: Prompt tokens shared with other requests (a system prompt), which a prefix cache reuses.
        prefixes: Number of different shared prefixes.
        arrivals: Distribution of the gaps between arrivals: ``constant``, ``poisson`` or ``gamma``.
        burstiness: Squared coefficient of variation of gamma gaps.
        requests: Number of requests to replay for each seed; a trace is replayed in full.
        runtime: See :func:`estimate`.
        weights: Weight format. Default: the chip's usual format, as in :func:`estimate`.
        kv: KV-cache dtype.
        tp: Tensor-parallel degree.
        pp: Pipeline-parallel degree.
        ep: Expert-parallel degree.
        dp: Data-parallel replicas of attention, which share experts.
        replicas: Number of replicas behind a router.
        max_tokens: Maximum tokens per step. Default: the runtime's.
        max_sequences: Maximum sequences per step. Default: the runtime's.
        prefix_cache: Whether shared prefixes of prompts are cached.
        timeout_s: Time after which clients give up.
        request_s: Seconds that HTTP and tokenizer add to a request, as printed by ``plan check``.
        step_scale: Factor on all step times, as printed by ``plan check``.
        drafted: Drafted tokens per step in speculative decoding; 0 for none.
        acceptance: Probability that a drafted token is accepted.
        draft: The draft model; ``ngram`` or None for drafts copied from the text, which take no time.
        batching: For encoders: ``tokens`` packs texts up to ``max_tokens``; ``requests`` pads texts to the longest one.
        decode_device: A separate device for decode; ``device`` then only prefills, and KV caches are transferred.
        decode_replicas: Number of decode replicas.
        decode_tp: Tensor-parallel degree for decode.
        link: Bandwidth from prefill to decode, such as ``"50 GB/s"``.
        disturbances: Any of ``{"slow_share": "5 %", "slow_factor": 1.5, "network_p50": "20 ms", "network_p99":
            "120 ms"}``: other programs slow steps for a share of the time; the network delays requests (both ways).
        seeds: Number of random loads; results are means over them.
        seed: The first seed.
        on_progress: Called with the number of finished requests and the total number.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument is wrong, or not exactly one of rate, clients and trace is given.
        DoesNotFit: The model needs more memory than its devices have.
        Unsupported: A device's data sheet lacks a rate that the model needs.
    """
    deployment = deployment or Deployment(
        device=device, runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp
    )
    load = load or OfferedLoad(
        rate=rate, clients=clients, think_s=think_s, trace=trace, prompt=prompt, new=new, spread=spread, seeds=seeds,
        shared_tokens=shared_tokens, prefixes=prefixes, arrivals=arrivals, burstiness=burstiness, seed=seed,
        requests=requests,
    )  # fmt: skip
    scheduling = Scheduling(
        max_tokens=max_tokens, max_sequences=max_sequences, prefix_cache=prefix_cache, timeout_s=timeout_s, draft=draft,
        request_s=request_s, step_scale=step_scale, drafted=drafted, acceptance=acceptance, batching=batching,
    )  # fmt: skip
    pools = Pools(
        replicas=replicas, decode_device=decode_device, decode_replicas=decode_replicas, decode_tp=decode_tp, link=link
    )
    by = disturbances_of(disturbances or {})
    return simulate_model(model, deployment, load, scheduling=scheduling, pools=pools, by=by, on_progress=on_progress)


@public
def agent_loop(loop: str | Path | Mapping[str, object]) -> LoopCost:
    """Predicts one turn of an agent's loop (perceive, think, act), and finds alternatives within its time budget.

    >>> import chipwise
    >>> think = {"name": "think", "model": "Qwen/Qwen3-0.6B", "prompt": 200, "new": 20}
    >>> found = chipwise.agent_loop(
    ...     {"budget": "2 s", "device": "l4", "parts": [think, {"name": "act", "time": "9 ms"}]}
    ... )
    >>> found.fits, found.largest.part.name
    (True, 'think')

    Args:
        loop: A YAML file or a mapping with ``budget``, ``device`` and ``parts``.

    Raises:
        SpecError: A field is unknown, missing or wrong, or a part's cost cannot be predicted; the message says which.
    """
    return price_loop(build(AgentLoop, dict(loop)) if isinstance(loop, Mapping) else read_loop(Path(loop)))


def _is_question(model: object, rate: object, trace: object) -> bool:
    """Whether ``model`` names a YAML file that states model, load and limits.

    If a rate or a trace is given, the file states only a model.
    """
    return str(model).endswith((".yaml", ".yml")) and rate is None and trace is None


def _question_in(given: Mapping[str, object]) -> str | None:
    if isinstance(given["model"], FleetQuestion):
        return "the question"
    return "the question file" if _is_question(given["model"], given.get("rate"), given.get("trace")) else None


@public
@stated_by(_question_in, *PLANNED)
def plan(
    model: str | Path | FleetQuestion,
    *,
    rate: float | str | None = None,
    trace: str | Path | None = None,
    prompt: int = 1024,
    new: int = 128,
    spread: float = 0.0,
    shared_tokens: int = 0,
    prefixes: int = 1,
    limits: Mapping[str, object] | None = None,
    classes: Sequence[Mapping[str, object]] | None = None,
    devices: Sequence[str] | str | None = None,
    runtimes: Sequence[str] | None = None,
    weights: Sequence[str] | None = None,
    tp: Sequence[int] = (1, 2, 4, 8),
    pp: Sequence[int] = (1,),
    ep: Sequence[int] | None = None,
    dp: Sequence[int] = (1,),
    speculation: Sequence[str | Mapping[str, object]] = (),
    fleets: Sequence[str] | str = ("together",),
    link: str | None = None,
    prices: Mapping[str, object] | None = None,
    max_devices: int = 1024,
    power: str | None = None,
    budget: str | None = None,
    confidence: float = 0.9,
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson",
    burstiness: float = 1.0,
    requests: int = 400,
    kv: str | None = None,
    disturbances: Mapping[str, object] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> FleetPlan:
    """Finds the cheapest fleet that serves a load within limits: chips, their number and their deployment.

    >>> import chipwise
    >>> found = chipwise.plan("Qwen/Qwen3-0.6B", rate=2, limits={"ttft_p99": "500 ms"}, devices=["l4"], tp=[1])
    >>> found.best.device
    'l4'

    Args:
        model: A known model, a file or a folder. Or a YAML file or a
            :class:`~chipwise.design.fleet.question.FleetQuestion`, which states model, load, limits and all other
            settings.
        rate: Requests per second: ``20``, ``"20/s"``, ``"90/min"``.
        trace: A file of requests (JSON lines or CSV); replaces ``rate`` and the arguments for sizes of requests.
        prompt: Mean prompt tokens.
        new: Mean new tokens.
        spread: Coefficient of variation of prompt and new tokens.
        shared_tokens: Prompt tokens shared with other requests.
        prefixes: Number of different shared prefixes.
        limits: Maps metrics (``ttft_p99``, ``tpot_p95``, ``e2e_mean``, …) to limits on their times, as text
            (``"500 ms"``) or in seconds.
        classes: Classes of requests, instead of ``prompt`` and ``new``: mappings with ``name``, ``share``, ``prompt``,
            ``new``, ``limits`` and more.
        devices: Devices to choose from. Default: all with a price.
        runtimes: Runtimes to choose from. Default: each device's usual one.
        weights: Formats to choose from. Default: bf16, and fp8 if the device computes in fp8.
        tp: Tensor-parallel degrees to choose from.
        pp: Pipeline-parallel degrees to choose from.
        ep: Expert-parallel degrees to choose from. Default for mixtures of experts: 1, and ``tp`` times ``dp``.
        dp: Data-parallel degrees of attention to choose from, for mixtures of experts.
        speculation: Kinds of speculative decoding to consider: ``MODEL:TOKENS:ACCEPTANCE``, or mappings with
            ``drafted`` tokens per step, ``acceptance`` (probability that a drafted token is accepted) and ``draft``,
            the draft model. Without ``draft``, tokens are copied from the text (n-grams).
        fleets: Kinds of fleets to consider: ``together``, and ``apart`` (separate pools for prefill and decode).
        link: Bandwidth from prefill to decode, such as ``"50 GB/s"``. Default: that of the prefill devices' links.
        prices: Maps devices to your prices (spot, reserved), instead of list prices: ``{"h100-sxm": "1.9 USD/h"}``.
        max_devices: Maximum number of devices in a fleet.
        power: Limit on the power of all boards together: ``"20 kW"``.
        budget: Limit on the price of all devices together: ``"10 USD/h"``.
        confidence: Probability with which all limits must hold.
        arrivals: Distribution of the gaps between arrivals: ``constant``, ``poisson`` or ``gamma``.
        burstiness: Squared coefficient of variation of gamma gaps.
        requests: Number of requests to replay per engine.
        kv: KV-cache dtype.
        disturbances: Neighbours and network, as in :func:`simulate`.
        seed: Seed of the random load.
        out: File for the plan; while planning, it holds intermediate results.
        resume: Whether to continue from the intermediate results in ``out``.
        on_progress: Called with the number of evaluated deployments and the total number.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument or a field of the file is wrong.
        Infeasible: No fleet meets the limits; the message names the closest fleet and says how close it comes.
    """
    if isinstance(model, FleetQuestion):
        question = model
    elif _is_question(model, rate, trace):
        question = read_question(Path(model))
    else:
        if (rate is None) == (trace is None):
            raise SpecError("give either rate or trace", field="rate")
        one = {"name": "requests", "prompt": prompt, "new": new, "spread": spread, "shared": shared_tokens}
        given: dict[str, object] = {
            "model": str(model), "rate": rate, "trace": None if trace is None else str(trace), "limits": limits or {},
            "devices": devices, "runtimes": runtimes, "weights": weights, "tp": tp, "pp": pp, "ep": ep, "dp": dp,
            "speculation": speculation, "fleets": fleets, "link": link, "prices": prices, "most_devices": max_devices,
            "power": power, "budget": budget, "confidence": confidence, "arrivals": arrivals, "burstiness": burstiness,
            "requests": requests, "kv": kv, "disturbances": disturbances, "seed": seed,
        }  # fmt: skip
        if classes or trace is None:
            given["classes"] = list(classes or [{**one, "prefixes": prefixes}])
        question = question_from(plain({name: value for name, value in given.items() if value is not None}))
    return plan_question(question, out=None if out is None else Path(out), resume=resume, on_progress=on_progress)


@public
def bill(
    plan: str | Path | FleetPlan | None = None,
    *,
    machines: int | None = None,
    rent: str | None = None,
    power: str | None = None,
    buy: str | None = None,
    electricity: str | None = None,
    growth: str = "0 %/month",
    months: int = 24,
    hours_per_day: float = 24.0,
) -> Bill:
    """Computes the monthly bills for renting and for buying a fleet: a plan's best fleet, or a number of machines.

    >>> import chipwise
    >>> stores = chipwise.bill(machines=4000, power="150 W", electricity="0.15 USD/kWh", months=1)
    >>> round(stores.months[0].electricity_usd)
    65700

    Args:
        plan: A plan, or its file. The bills are for the plan's best fleet.
        machines: Number of machines, instead of a plan.
        rent: Rent of one machine, such as ``2.5 USD/h``. Default: the plan's prices.
        power: Power draw of one machine, such as ``150 W``. Default: the board power of the plan's devices.
        buy: Purchase price of one machine, such as ``9000 USD``. Another currency needs an exchange rate to dollars,
            such as ``8000 EUR @ 1.16``.
        electricity: Electricity tariff, such as ``0.30 USD/kWh``.
        growth: Growth of the load, such as ``8 %/month``.
        months: Number of months.
        hours_per_day: Hours per day that the machines run.

    Raises:
        SpecError: An argument is wrong, not exactly one of ``plan`` and ``machines`` is given, or no price is known.
    """
    if (plan is None) == (machines is None):
        raise SpecError("give a plan or a number of machines", field="machines")
    if not 0 < hours_per_day <= 24:
        raise SpecError(f"must be above 0 and at most 24, not {hours_per_day:g}", field="hours_per_day")
    watts = None if power is None else above_zero(units.parse_field(power, "power", "power"), "power", "power")
    each = None if rent is None else 3600 * above_zero(units.parse_field(rent, "price_rate", "rent"), "rent")
    if machines is not None:
        if not 1 <= machines <= 100_000_000:
            raise SpecError(f"must be from 1 to 100,000,000, not {machines:,}", field="machines")
        several = None if watts is None else machines * watts
        fleet = FleetToBill(label=counted(machines, "machine"), devices=machines, power_w=several)
    else:
        fleet = fleet_of(_finished(plan), power_w=watts)
    fleet = replace(
        fleet,
        usd_per_h=fleet.usd_per_h if each is None else fleet.devices * each,
        purchase_usd=None if buy is None else dollars(buy, "buy"),
        usd_per_kwh=None if electricity is None else dollars(electricity, "electricity", per_kwh=True),
        hours=fleet.hours * hours_per_day / 24,
    )
    if fleet.usd_per_h is None and fleet.purchase_usd is None and (fleet.usd_per_kwh is None or fleet.power_w is None):
        raise SpecError("no price is known; give `rent`, `buy`, or both `electricity` and `power`", field="rent")
    return billed(fleet, growth=growth_of(growth), months=months)


def _finished(plan: str | Path | FleetPlan | None) -> FleetPlan:
    if isinstance(plan, FleetPlan):
        return plan
    found = read_plan(Path(str(plan))).plan
    if found is None:
        raise SpecError("holds an unfinished plan; run chipwise plan with --resume first", file=str(plan))
    return found

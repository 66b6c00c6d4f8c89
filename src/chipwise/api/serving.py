"""Models under load: simulates one arrangement, or finds the cheapest fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from chipwise.core import units
from chipwise.core.arguments import public
from chipwise.core.fields import MOST, whole_number
from chipwise.core.files import build, check_output
from chipwise.design.fleet.agent_loop import AgentLoop, LoopCost, price_loop, read_loop
from chipwise.design.fleet.answer import FleetPlan, planned
from chipwise.design.fleet.arrangements import check_positions, copies_share, positions_of
from chipwise.design.fleet.plan_files import known_of, write_progress
from chipwise.design.fleet.question import FleetQuestion, above_zero, question_from, rate_of, read_question
from chipwise.design.fleet.simulating import ReplicaGroup, Simulation, simulated
from chipwise.errors import SpecError, counted
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.load.load import WHOLE_INPUT, Load, RequestClass, describe_arrivals, generate_load
from chipwise.predict.load.policy import NGRAM, Speculation, policy_of
from chipwise.predict.load.traces import read_trace
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, resolved


@public
def simulate(
    model: str | Path | ArchSpec,
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
    also: str | None = None,
    decode_device: str | None = None,
    decode_replicas: int = 1,
    decode_tp: int = 1,
    link: str | None = None,
    seeds: int = 2,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Predicts latencies of one arrangement under load by replaying its scheduler with predicted step times.

    >>> import chipwise
    >>> found = chipwise.simulate("Qwen/Qwen3-0.6B", device="l4", rate="2/s", requests=100, seeds=1)
    >>> found.times["ttft_p99"].low < found.times["ttft_p99"].value < found.times["ttft_p99"].high
    True

    Args:
        model: See :func:`estimate`.
        device: A data sheet's name, alias or file.
        rate: Requests per second: ``8``, ``"8/s"``, ``"90/min"``.
        clients: Number of clients in a closed loop, each sending one request after another; replaces ``rate``.
        think_s: Seconds that a client waits before its next request.
        trace: A file of requests (JSON lines or CSV); replaces ``rate`` and sizes.
        prompt: Mean prompt tokens.
        new: Mean new tokens (not for text encoders).
        spread: Coefficient of variation of prompt and new tokens (lognormal).
        shared_tokens: Prompt tokens shared with other requests (a system prompt), which the prefix cache finds.
        prefixes: Number of different shared texts.
        arrivals: ``constant``, ``poisson`` or ``gamma`` gaps.
        burstiness: Squared coefficient of variation of gamma gaps.
        requests: Requests to replay for each seed; a trace is replayed in full.
        runtime: See :func:`estimate`.
        weights: Weight format; what suits the chip by default, as in :func:`estimate`.
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
        draft: The draft model; ``ngram`` or None for drafts copied from the text, which cost nothing.
        batching: For encoders: steps of packed ``tokens``, or of ``requests`` padded to the longest.
        also: Another device behind the same router, as ``DEVICE``, ``DEVICE:REPLICAS`` or ``DEVICE:REPLICAS:WEIGHT``.
        decode_device: Decode on this device and prefill on ``device``; the KV cache is transferred.
        decode_replicas: Number of decode replicas.
        decode_tp: Tensor-parallel degree for decode.
        link: Bandwidth from prefill to decode, such as ``"50 GB/s"``.
        seeds: Number of random loads; figures are means over them.
        seed: The first seed.
        on_progress: Called with the number of finished requests and of all requests.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument is wrong, or not exactly one of rate, clients and trace was given.
        DoesNotFit: The model needs more memory than its devices have.
        Unsupported: A device lacks a rate.
    """
    if (rate is not None) + (clients is not None) + (trace is not None) != 1:
        raise SpecError("give one of rate, clients and trace", field="rate")
    whole_number("seeds", seeds, most=100)
    whole_number("decode_tp", decode_tp, most=1024)
    for name, count in (("replicas", replicas), ("decode_replicas", decode_replicas)):
        whole_number(name, count, most=100_000)
    if not 0 <= acceptance <= 1:
        raise SpecError(f"must be from 0 to 1, not {acceptance:g}", field="acceptance")
    if not 0.01 <= step_scale <= 100:
        raise SpecError(f"must be from 0.01 to 100, not {step_scale:g}", field="step_scale")
    if think_s and clients is None:
        raise SpecError("only applies to clients; give clients instead of rate or trace", field="think_s")
    if draft is not None and not drafted:
        raise SpecError("needs drafted: the tokens drafted in each step", field="draft")
    if decode_device is None:
        of_decoding = {"link": link is not None, "decode_replicas": decode_replicas > 1, "decode_tp": decode_tp > 1}
        for name, given in of_decoding.items():
            if given:
                raise SpecError("only valid for prefill and decode apart; name the decode_device", field=name)
    link_bytes_per_s = None if link is None else above_zero(units.parse_field(link, "bandwidth", "link"), "link")
    served = Deployment(device=device, runtime=runtime, weights=weights, kv=kv, tp=tp, pp=pp, ep=ep, dp=dp)
    batch = 12 * pp * dp
    base = Request(model=model, deployment=served, batch=batch, prompt_tokens=prompt, new_tokens=max(new, 1))
    found = resolved(base)
    arch = found.setting.arch
    generates = arch.causal
    if generates and batching == "requests":
        raise SpecError(
            f"{arch.name} generates text, so its steps are filled with tokens; batching is for encoders",
            field="batching",
        )
    if dp > 1 and not copies_share(arch):
        said = f"replicas of {arch.name} share neither experts nor tables; use replicas={dp} instead"
        raise SpecError(said, field="dp")
    if not arch.reads_tokens:  # one request is an image, or a history with candidates
        prompt, new, spread, shared_tokens = 1, 0, 0.0, 0
        base = replace(base, prompt_tokens=1, new_tokens=1)
    if trace is None:
        check_positions(arch, prompt, new if generates else 0, field="prompt")
    kind = RequestClass(
        prompt_tokens=prompt, new_tokens=new if generates else 0, spread=spread, shared_tokens=shared_tokens,
        prefixes=prefixes,
    )  # fmt: skip
    loads = _loads(
        kind, longest=positions_of(arch), trace=trace, rate=rate, clients=clients, think_s=think_s, seeds=seeds,
        seed=seed, requests=requests, arrivals=arrivals, burstiness=burstiness,
    )  # fmt: skip
    policy = policy_of(found.setting.runtime, generates=generates, stem=not arch.reads_tokens)
    if not generates and batching == "requests":
        policy = replace(policy, padded=True, most_tokens=2**20, most_sequences=32)
    if drafted:
        drafts = None if draft == NGRAM else draft
        policy = replace(policy, speculation=Speculation(drafted=drafted, acceptance=acceptance, draft=drafts))
    policy = replace(
        policy,
        most_tokens=policy.most_tokens if max_tokens is None else max_tokens,
        most_sequences=policy.most_sequences if max_sequences is None else max_sequences,
        timeout_s=timeout_s,
        prefix_cache=policy.prefix_cache and prefix_cache,
        request_s=request_s,
    )
    parts = [
        ReplicaGroup(request=base, replicas=replicas, policy=policy, weight=float(replicas), step_scale=step_scale)
    ]
    if also is not None:
        parts.append(_another(also, base, policy, step_scale))
    apart = None
    if decode_device is not None:
        if also is not None or clients is not None:
            raise SpecError(
                "separate prefill and decode cannot be combined with clients or a second kind of device", field="also"
            )
        other = base.but(device=decode_device, tp=decode_tp, pp=1)
        apart = ReplicaGroup(request=other, replicas=decode_replicas, policy=policy, step_scale=step_scale)
    each = kind.describe() if arch.reads_tokens else WHOLE_INPUT
    return simulated(
        loads,
        parts,
        apart=apart,
        link_bytes_per_s=link_bytes_per_s,
        closed=clients is not None or trace is not None,
        about_load=_about_load(loads[0], rate, clients, think_s, trace, arrivals, burstiness, each),
        on_progress=on_progress,
    )


def _another(text: str, base: Request, policy: Any, step_scale: float) -> ReplicaGroup:
    """The second pool of a mixed fleet, from ``DEVICE[:REPLICAS[:WEIGHT]]``."""
    name, *rest = text.rsplit(":", 2) if text.count(":") > 1 else text.split(":")
    try:
        replicas = int(rest[0]) if rest else 1
        weight = float(rest[1]) if len(rest) > 1 else float(replicas)
    except ValueError:
        raise SpecError(
            f"must be DEVICE, DEVICE:REPLICAS or DEVICE:REPLICAS:WEIGHT, not {text!r}", field="also"
        ) from None
    if not 1 <= replicas <= 100_000 or not 0 < weight <= MOST:
        raise SpecError(f"needs 1 to 100,000 replicas and a weight above 0, not {text!r:.60}", field="also")
    return ReplicaGroup(
        request=base.but(device=name), replicas=replicas, policy=policy, weight=weight, step_scale=step_scale
    )


def _loads(
    kind: RequestClass, *, longest: int | None, trace: str | Path | None, rate: float | str | None,
    clients: int | None, think_s: float, seeds: int, seed: int, requests: int, arrivals: Any, burstiness: float,
) -> list[Load]:  # fmt: skip

    if trace is not None:
        return [read_trace(trace, longest=longest)[0]]
    per_s = None if rate is None else rate_of(rate)
    loads = [
        generate_load(
            (kind,), count=requests, rate_per_s=per_s, arrivals=arrivals, burstiness=burstiness, clients=clients,
            think_s=think_s, seed=seed + i,
        )
        for i in range(seeds)
    ]  # fmt: skip
    if longest is None or kind.spread == 0:
        return loads
    return [load.within(longest) for load in loads]


def _about_load(
    load: Load, rate: float | str | None, clients: int | None, think_s: float, trace: str | Path | None,
    arrivals: Any, burstiness: float, each: str,
) -> str:  # fmt: skip
    """Describes the load in words, for the page."""
    if trace is not None:
        return f"the {counted(len(load), 'request')} of {trace}"
    if clients is not None:
        waits = f", each waiting {units.show(think_s, 'time')} between its requests" if think_s else ""
        return f"{counted(clients, 'client')} in a closed loop{waits}; {each}"
    return f"{describe_arrivals(rate_of(rate), arrivals, burstiness)}; {each}"


@public
def agent_loop(loop: str | Path | Mapping[str, Any]) -> LoopCost:
    """Prices one turn of an agent's loop (perceive, think, act), and finds what fits into its budget.

    >>> import chipwise
    >>> think = {"name": "think", "model": "Qwen/Qwen3-0.6B", "prompt": 200, "new": 20}
    >>> found = chipwise.agent_loop(
    ...     {"budget": "2 s", "device": "l4", "parts": [think, {"name": "act", "time": "9 ms"}]}
    ... )
    >>> found.fits, found.largest.part.name
    (True, 'think')

    Args:
        loop: A YAML file, or the same as a mapping: ``budget``, ``device`` and ``parts``.

    Raises:
        SpecError: A field is unknown, missing or wrong, or a part cannot be priced; the message names it.
    """
    return price_loop(build(AgentLoop, dict(loop)) if isinstance(loop, Mapping) else read_loop(Path(loop)))


@public
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
    classes: Sequence[Mapping[str, Any]] | None = None,
    devices: Sequence[str] | str | None = None,
    runtimes: Sequence[str] | None = None,
    weights: Sequence[str] | None = None,
    tp: Sequence[int] = (1, 2, 4, 8),
    pp: Sequence[int] = (1,),
    ep: Sequence[int] | None = None,
    dp: Sequence[int] = (1,),
    speculation: Sequence[Mapping[str, Any]] = (),
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
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> FleetPlan:
    """Finds the cheapest chips, their number and arrangement that serve a load within limits.

    >>> import chipwise
    >>> found = chipwise.plan("Qwen/Qwen3-0.6B", rate=2, limits={"ttft_p99": "500 ms"}, devices=["l4"], tp=[1])
    >>> found.best.device
    'l4'

    Args:
        model: A known model, a file or a folder; or a whole question (a YAML file, or a
            :class:`~chipwise.design.fleet.question.Question`), which then defines everything else.
        rate: Requests per second: ``20``, ``"20/s"``, ``"90/min"``.
        trace: A file of requests (JSON lines or CSV); replaces rate and sizes.
        prompt: Mean prompt tokens.
        new: Mean new tokens.
        spread: Coefficient of variation of prompt and new tokens.
        shared_tokens: Prompt tokens shared with other requests.
        prefixes: Number of different shared texts.
        limits: Limits on times by metric (``ttft_p99``, ``tpot_p95``, ``e2e_mean``, …): ``"500 ms"`` or seconds.
        classes: Classes of requests instead of prompt and new: mappings with ``name``, ``share``, ``prompt``, ``new``,
            ``limits`` and more.
        devices: Devices to choose from. Default: all with a price.
        runtimes: Runtimes to choose from. Default: each device's own.
        weights: Formats to choose from. Default: bf16, and fp8 if the device computes in fp8.
        tp: Tensor-parallel degrees to choose from.
        pp: Pipeline-parallel degrees to choose from.
        ep: Expert-parallel degrees to choose from. Default for mixtures of experts: 1, and one group on every device.
        dp: Data-parallel degrees of attention to choose from, for mixtures of experts.
        speculation: Kinds of speculative decoding to consider: mappings with ``drafted`` tokens per step,
            ``acceptance`` (probability that a drafted token is accepted) and ``draft``, the draft model. Without
            ``draft``, tokens are copied from the text (n-grams).
        fleets: ``together``; also ``apart`` (separate pools for prefill and decode) and ``mixed`` (two kinds of devices
            behind one router).
        link: Bandwidth from prefill to decode, such as ``"50 GB/s"``. Default: that of the prefill devices' links.
        prices: Prices by device instead of list prices, such as spot or reserved: ``{"h100-sxm": "1.9 USD/h"}``.
        max_devices: Maximum number of devices in a fleet.
        power: Limit on the power of all boards together: ``"20 kW"``.
        budget: Limit on the price of all devices together: ``"10 USD/h"``.
        confidence: Probability with which all limits must hold.
        arrivals: ``constant``, ``poisson`` or ``gamma`` gaps.
        burstiness: Squared coefficient of variation of gamma gaps.
        requests: Number of requests to replay per engine.
        kv: KV-cache dtype.
        seed: Seed of the random load.
        out: File for the plan and, while planning, for intermediate results.
        resume: Whether to continue from the results in ``out``.
        on_progress: Called with the number of evaluated arrangements and of all arrangements.

    Raises:
        UnknownName: A name is unknown.
        SpecError: An argument or a field of the file is wrong.
        Infeasible: No fleet meets the limits; the message names them with the closest values.
    """
    in_file = str(model).endswith((".yaml", ".yml")) and rate is None and trace is None
    if isinstance(model, FleetQuestion) or in_file:
        named = {"rate": rate, "trace": trace, "limits": limits, "classes": classes, "devices": devices,
                 "runtimes": runtimes, "weights": weights, "prices": prices, "power": power, "budget": budget,
                 "kv": kv}  # fmt: skip
        for name, value in named.items():
            if value:
                raise SpecError(f"is already set in the question{' file' if in_file else ''}", field=name)
        question = model if isinstance(model, FleetQuestion) else read_question(Path(model))
    else:
        if (rate is None) == (trace is None):
            raise SpecError("give one of rate and trace", field="rate")
        one: dict[str, Any] = {"name": "requests", "prompt": prompt, "new": new, "spread": spread}
        one |= {"shared": shared_tokens, "prefixes": prefixes}
        given: dict[str, Any] = {
            "model": str(model), "limits": dict(limits or {}), "tp": list(tp), "pp": list(pp),
            "most_devices": max_devices, "confidence": confidence, "arrivals": arrivals, "burstiness": burstiness,
            "requests": requests, "seed": seed, "dp": list(dp), "speculation": [dict(each) for each in speculation],
            "fleets": fleets if isinstance(fleets, str) else list(fleets),
        }  # fmt: skip
        optional = {
            "rate": rate, "trace": None if trace is None else str(trace), "devices": devices, "runtimes": runtimes,
            "weights": weights, "prices": prices, "power": power, "budget": budget, "kv": kv, "link": link,
            "ep": None if ep is None else list(ep),
        }  # fmt: skip
        if classes or trace is None:
            given["classes"] = [dict(each) for each in classes] if classes else [one]
        given |= {name: value for name, value in optional.items() if value is not None}
        for name in ("devices", "runtimes", "weights"):
            if name in given and not isinstance(given[name], str):
                given[name] = list(given[name])
        question = question_from(given)
    path = None if out is None else Path(out)
    if path is not None:
        check_output(path)
    elif resume:
        raise SpecError("needs out, the file of the plan", field="resume")
    known = known_of(path, question) if path is not None and resume else {}
    found = planned(
        question,
        known=known,
        on_progress=on_progress,
        on_known=None if path is None else lambda held: write_progress(path, question, held),
    )
    if path is not None:
        found.save(path)
    return found

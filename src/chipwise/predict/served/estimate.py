"""Estimates requests: kernels and their bounds, memory, energy and price, each as a CostEstimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from chipwise.core.dtypes import DType, weight_format
from chipwise.errors import ChipwiseError, DoesNotFit, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost, Predicted, per_second
from chipwise.predict.served.energy import Energies, energies, energy_j_per_token
from chipwise.predict.served.groups import MODEL, Group, GroupCost, cost_groups, grouped, groups_of, memory_of
from chipwise.predict.served.kernel_times import FIGURES, op_at
from chipwise.predict.served.memory import DeviceMemory
from chipwise.predict.served.request import Request, parameters_of, resolved, taken_for
from chipwise.predict.served.served_energy import served_power
from chipwise.predict.served.setting import Setting
from chipwise.predict.served.shortage import shortages
from chipwise.predict.served.steps import PassTimes, class_of
from chipwise.predict.served.tails import kind_of, ratios, taught_tails, with_tails
from chipwise.predict.served.tails import said as tails_said
from chipwise.predict.served.towers import SOUND, place_of

WORTH_NOTING = 0.01  # share of a pass from which misalignment is noted


def estimate(request: Request, *, fold: str | None = None, hypothetical: bool = False) -> CostEstimate:
    """Estimates one request, kernel by kernel.

    If not all requested concurrent requests fit in memory, the estimate is for as many as fit, and its provenance says
    so; all other requests wait. With ``hypothetical``, a model that does not fit at all is estimated as if it did, and
    the estimate's ``does_not_fit`` says so.

    Raises:
        UnknownName: A model, device, runtime or format is unknown.
        SpecError: A parallel degree does not divide the model.
        Unsupported: The device lacks a rate.
        DoesNotFit: The model and one request's cache need more memory than the devices have.
    """
    found = estimates([request], fold=fold, hypothetical=hypothetical)[0]
    if isinstance(found, ChipwiseError):
        raise found
    return _with_served_power(found, request)


def _with_served_power(found: CostEstimate, request: Request) -> CostEstimate:
    """Adds power and energy under continuous load, if the laws fitted to power measurements cover the request."""
    setting = (asked := resolved(request)).setting
    try:
        drawn = served_power(
            setting,
            asked.device,
            requests=request.batch,
            prompt_tokens=request.prompt_tokens,
            new_tokens=request.new_tokens,
        )
    except Unsupported:
        return found
    return replace(found, metrics=found.metrics | drawn)


def estimates(
    requests: Sequence[Request], *, fold: str | None = None, hypothetical: bool = False
) -> list[CostEstimate | ChipwiseError]:
    """Estimates many requests together. Returns an estimate or an error for each request, in order."""
    costs, errors, short = priced(requests, fold=fold, hypothetical=hypothetical)
    lacking = dict(zip(short, shortages([requests[row] for row in short]), strict=True))
    answers: dict[int, CostEstimate | ChipwiseError] = {
        row: DoesNotFit(each.message) for row, each in lacking.items() if each is not None
    }
    answers |= errors
    for cost, energy in zip(costs, energies(costs), strict=True):
        for i, row in enumerate(cost.group.rows):
            request, fits = requests[row], int(cost.group.in_flight[i])
            found = with_defaults(estimate_of(cost, i, energy), request)
            if (lack := lacking.get(row)) is not None:
                found = replace(found, does_not_fit=lack.line)
            if fits < request.batch:
                few = waiting(fits, request.batch)
                found = _noted(found, f"{few}: times are those of {fits} requests at once", few)
            for said in taken_for(request.model, request.device):
                found = _noted(found, said)
            answers[row] = found
    return [answers[i] for i in range(len(requests))]


def priced(
    requests: Sequence[Request], *, fold: str | None = None, hypothetical: bool = False
) -> tuple[list[GroupCost], dict[int, ChipwiseError], dict[int, tuple[Group, DeviceMemory, int]]]:
    """Computes the costs of many requests together, each for as many concurrent requests as fit in memory.

    Returns:
        Three results. The first is the cost of each group. The second maps the index of each request that cannot be
        estimated to its error. The third is about requests that do not fit in memory even one at a time: it maps the
        index of each to its group, the group's memory, and its index in the group. With ``hypothetical``, the costs
        include these requests.
    """
    groups, errors = grouped(requests)
    short: dict[int, tuple[Group, DeviceMemory, int]] = {}
    fitting, costs = [], []
    for group in groups:
        try:
            memory = memory_of(group)
        except Unsupported as error:
            errors |= dict.fromkeys(group.rows, error)
            continue
        held = fitting_requests(group, memory)
        short |= {group.rows[i]: (group, memory, i) for i in np.flatnonzero(held == 0).tolist()}
        if hypothetical:
            held = np.where(held == 0, group.in_flight, held)
        if held.any():
            fitting.append(group.served(held))
    for group, cost in zip(fitting, cost_groups(fitting, fold=fold), strict=True):
        if isinstance(cost, Unsupported):
            errors |= dict.fromkeys(group.rows, cost)
        else:
            costs.append(cost)
    return costs, errors, short


def _noted(found: CostEstimate, note: str, origin: str | None = None) -> CostEstimate:
    """Adds ``note`` to the estimate's notes, and ``origin`` (default: the same note) to its provenance."""
    return replace(found, provenance=f"{found.provenance}; {origin or note}", notes=(*found.notes, note))


def with_defaults(found: CostEstimate, request: Request) -> CostEstimate:
    """Adds the model's numbers of parameters, and whether the runtime and the weights' format are defaults."""
    named = {"runtime": request.deployment.runtime, "weights": request.deployment.weights}
    whole, active = parameters_of(request.model)
    defaults = tuple(name for name, value in named.items() if value is None)
    return replace(found, defaults=defaults, parameters=whole, active_parameters=active)


def waiting(fitting: int, asked: int) -> str:
    """The note for estimates in which not all requests fit at once."""
    return f"memory holds {fitting} of {asked} requests at once, the others wait"


def fitting_requests(group: Group, memory: DeviceMemory) -> npt.NDArray[np.int64]:
    """For each row of the group, how many of its concurrent requests fit in the devices' memory."""
    asked, plan = group.in_flight, group.setting.plan
    free = group.device.usable_bytes - memory.weights - memory.activations - memory.runtime
    each = memory.cache / group.sequences
    held = np.where(each > 0, np.floor(np.maximum(free, 0) / np.maximum(each, 1)), asked) * plan.dp
    return np.where(free < 0, 0, np.minimum(held, asked)).astype(np.int64)


def cost_of(request: Request) -> GroupCost:
    """The cost of one request, even if it does not fit in memory."""
    found = cost_groups(groups_of([request]))[0]
    if isinstance(found, Unsupported):
        raise found
    return found


def estimate_of(cost: GroupCost, i: int, energy: Energies | Unsupported | None = None) -> CostEstimate:
    """The estimate of request ``i`` of a group.

    Args:
        cost: Cost of the group.
        i: Index of the request in the group.
        energy: Energies of the group, if already known.
    """
    group = cost.group
    setting, device = group.setting, group.device
    request = cost.request_log_halfwidth
    request_halfwidth = None if request is None else float(request[i])
    tokens_per_s = float(cost.tokens_per_s[i])
    ttft = cost.ttft_log_halfwidth if group.generates else cost.log_halfwidth
    first = None if ttft is None else float(ttft[i])
    metrics = {"ttft_p50": Predicted.around(float(cost.prefill_s[i]), first)}
    if group.generates:
        metrics["tpot_p50"] = Predicted.around(float(cost.tpot_s[i]), float(cost.log_halfwidth[i]))
        metrics["decode_tokens_per_s"] = per_second(metrics["tpot_p50"])
        metrics["itl_p50"] = Predicted.around(float(cost.step_s[i]), float(cost.log_halfwidth[i]))
    metrics["throughput"] = Predicted.around(tokens_per_s, request_halfwidth)
    each = setting.arch.reads
    if each != "token":
        metrics[f"{each}_s"] = Predicted.around(1 / tokens_per_s, request_halfwidth)
    if (sound_s := setting.arch.sound_s) is not None:
        written_s = float(cost.tpot_s[i]) * int(group.new_tokens[i]) if group.generates else 0.0
        metrics["rtf"] = Predicted.around((float(cost.prefill_s[i]) + written_s) / sound_s, request_halfwidth)
    kind, taught = kind_of(setting.runtime, device, int(group.in_flight[i])), taught_tails(device, setting.runtime)
    prompt, new, batch = int(group.prompt_tokens[i]), int(group.new_tokens[i]), int(group.in_flight[i])
    tails = ratios(kind, prompt_tokens=prompt, new_tokens=new, batch=batch // setting.plan.dp, taught=taught)
    metrics |= with_tails(metrics, tails, float(cost.log_halfwidth[i]))
    notes = []
    try:
        metrics[f"joules_per_{each}"] = energy_j_per_token(cost, i, energies([cost])[0] if energy is None else energy)
        if device.board_power is None:
            notes.append(f"no published power for {device.name}: estimated from wall power of similar boards")
    except Unsupported as error:
        notes.append(f"no energy: {error}")
    try:
        usd_per_s = setting.plan.devices * device.price_usd_per_s
        metrics[f"usd_per_1k_{each}s"] = Predicted.around(1000 * usd_per_s / tokens_per_s, request_halfwidth)
        read, written = (1000 * float(usd[i]) for usd in cost.usd_per_token(usd_per_s))
        if each == "token":
            metrics["usd_per_1k_input_tokens"] = Predicted.around(read, first)
        if group.generates:
            metrics["usd_per_1k_output_tokens"] = Predicted.around(written, float(cost.log_halfwidth[i]))
    except Unsupported as error:
        notes.append(f"no price: {error}")
    prefill = operator_costs(cost.prefill, i)
    decode = operator_costs(cost.decode, i) if group.generates else ()
    notes += [
        *_seen(group, i),
        *misaligned(prefill, decode),
        *_positions(group, i),
        *_idle(group, i),
        tails_said(kind, setting.runtime.title, taught),
        *_widened(setting, device),
    ]
    step_s = {"prefill": cost.prefill_s[i], "decode": cost.step_s[i]}
    phases = {"prefill": prefill, "decode": decode} if group.generates else {"prefill": prefill}
    return CostEstimate(
        ttft_s=float(cost.prefill_s[i]),
        tpot_s=float(cost.tpot_s[i]),
        peak_memory_bytes=float(cost.memory.peak_bytes[i]),
        metrics=metrics,
        prefill=prefill,
        decode=decode,
        model=MODEL,
        device=device.label,
        runtime=setting.runtime.name,
        weights=setting.formats.stated,
        decode_step_s=float(cost.step_s[i]) if group.generates else None,
        devices=setting.plan.devices,
        memory_bytes=cost.memory.row(i),
        bound=bound_of(cost.decode)[i],
        mfu={phase: _share(costs, step_s[phase], "compute_s") for phase, costs in phases.items()},
        mbu={phase: _share(costs, step_s[phase], "memory_s") for phase, costs in phases.items()},
        provenance=cost.provenance,
        notes=tuple(notes),
    )


def misaligned(*passes: Sequence[OpCost]) -> list[str]:
    """A note on matrix products with misaligned rows, if they take 1 % of a pass or more."""
    places = sorted({cost.place for costs in passes for cost in costs if _counts(cost, costs)})
    if not places:
        return []
    named = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    return [f"rows of {named} are not a multiple of 16 bytes; the extra time is from published timings, not measured"]


def _seen(group: Group, i: int) -> list[str]:
    """A note on the tower's work for a request's images or sound."""
    passes = group.tower_passes
    if passes is None or group.tower_positions is None:
        return []
    tower, several = group.setting.arch.towers[0], "es" if passes[i] > 1 else ""
    what = "sound" if place_of(tower) == SOUND else "images"
    return [
        f"{what} of a request: {passes[i]:,} pass{several} of {group.tower_positions[i]:,} positions by a tower of "
        f"{tower.parameters():,} parameters; the prompt has {group.prompt_tokens[i]:,} tokens in total; the "
        f"tower's time was not validated"
    ]


def _positions(group: Group, i: int) -> list[str]:
    """A note if a request needs more positions than the model's context."""
    arch = group.setting.arch
    read = 0 if arch.own_tokens else int(group.prompt_tokens[i])
    longest = read + (int(group.new_tokens[i]) if group.generates else 0)
    if longest <= arch.max_tokens:
        return []
    if arch.positions != "learned":
        return [
            f"{arch.name} was made for a context of {arch.max_tokens:,} tokens; the request needs {longest:,}, and "
            "quality beyond its context is not predicted"
        ]
    return [
        f"{arch.name} has {arch.max_tokens:,} learned positions and the request needs {longest:,}; timing assumes an "
        "extended position table"
    ]


def _idle(group: Group, i: int) -> list[str]:
    """A note if there are fewer requests than replicas."""
    replicas, requests = group.setting.plan.dp, int(group.in_flight[i])
    return [f"{requests} requests keep {requests} of {replicas} replicas busy"] if requests < replicas else []


def _widened(setting: Setting, device: DeviceProfile) -> list[str]:
    """A note if weights are stored in 8-bit or 4-bit floats for which the device has no rate."""
    formats, listed = setting.formats, device.peak_flops_per_s
    kept = {weight_format(name).dtype for name in (formats.weights, formats.experts)}
    lacking = sorted(kept & {DType.FP8, DType.FP4} - set(listed))
    return [f"{device.name} has no rate for {name}: weights are widened before they are multiplied" for name in lacking]


def _counts(cost: OpCost, costs: Sequence[OpCost]) -> bool:
    whole_s = sum(each.latency_s for each in costs)
    return cost.kind == "matmul" and cost.doubt > 0 and cost.latency_s > WORTH_NOTING * whole_s


def _share(costs: tuple[OpCost, ...], total_s: float, limit: str) -> float:
    return float(sum(getattr(cost, limit) or 0.0 for cost in costs) / total_s)


def operator_costs(times: PassTimes, i: int) -> tuple[OpCost, ...]:
    """The kernels of a pass of request ``i``, with their costs."""
    return tuple(_operator_costs(times, i))


def _operator_costs(times: PassTimes, i: int) -> Iterator[OpCost]:
    kernel_s = times.kernel_s[:, i].tolist()
    for part, figures, latency_s in zip(times.parts, times.figures[:, :, i].T.tolist(), kernel_s, strict=True):
        each = dict(zip(FIGURES, figures, strict=True))
        compute, memory, launch = (part.count * each[name] for name in ("compute_s", "memory_s", "launch_s"))
        limits = {Bound.COMPUTE: compute, Bound.MEMORY: memory, Bound.LAUNCH: launch}
        bound = max(limits, key=lambda name: limits[name])
        if class_of(part.op.kind) == "collective":
            bound = Bound.LINK
        yield OpCost(
            place=part.place,
            kind=part.op.kind,
            latency_s=part.count * latency_s,
            bound=bound,
            work=op_at(part.op, i).work(),
            count=part.count,
            compute_s=compute,
            memory_s=memory,
            launch_s=launch,
            doubt=each["doubt"],
            saved_s=part.count * (each["latency_s"] - latency_s),
        )


def bound_of(times: PassTimes) -> list[Bound]:
    """For each request, the bound (compute, memory, launch or link) that limits most of the pass's time."""
    kinds = (Bound.COMPUTE, Bound.MEMORY, Bound.LAUNCH, Bound.LINK)
    which = np.argmax([times.figure(name) for name in ("compute_s", "memory_s", "launch_s")], axis=0)
    linked = [class_of(part.op.kind) == "collective" for part in times.parts]
    which[linked] = kinds.index(Bound.LINK)
    spent_s = np.array([part.count for part in times.parts])[:, None] * times.kernel_s
    sums = [np.where(which == kind, spent_s, 0.0).sum(axis=0) for kind in range(len(kinds))]
    return [kinds[kind] for kind in np.argmax(sums, axis=0)]

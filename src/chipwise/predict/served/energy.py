"""Energy per token of a served model: the power of each kernel times its time, plus idle power while the host works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.power_draw import floor_w
from chipwise.predict.cost.model import Predicted
from chipwise.predict.cost.request import request_total
from chipwise.predict.kernels.power import power
from chipwise.predict.served.groups import GroupCost
from chipwise.predict.served.kernel_times import Call, batches
from chipwise.predict.served.steps import PassTimes, class_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Energies:
    """Joules per new token for each request, including the token's share of the prefill.

    ``log_halfwidth`` is the half-width of the 90 % interval as a logarithm. It covers only the error of the power, not
    the error of the time.
    """

    token_j: Float64Array
    log_halfwidth: Float64Array


def energies(costs: Sequence[GroupCost]) -> list[Energies | Unsupported]:
    """The energies of each group's requests, or an error if the device lists no board power or lacks a rate."""
    answers: list[Energies | Unsupported | None] = [_refusal(cost.group.device) for cost in costs]
    asked = [cost for cost, refused in zip(costs, answers, strict=True) if refused is None]
    try:
        drawn = iter(_pass_energies([each for cost in asked for each in _passes(cost)]))
    except Unsupported as error:
        if len(costs) == 1:
            return [error]
        middle = len(costs) // 2
        return [*energies(costs[:middle]), *energies(costs[middle:])]
    for i, cost in enumerate(costs):
        if answers[i] is None:
            (prefill_j, _), (step_j, spread) = next(drawn), next(drawn)
            answers[i] = Energies(token_j=_token_j(cost, prefill_j, step_j), log_halfwidth=spread)
    return [answer for answer in answers if answer is not None]


def _token_j(cost: GroupCost, prefill_j: Float64Array, step_j: Float64Array) -> Float64Array:
    """Joules per token of all devices together, computed from the joules of one device's passes.

    Replicas without requests draw the idle power. The tokens are new tokens. For models that do not generate, the
    energy is divided by the number of prompt tokens, images or sounds instead.
    """
    group, plan = cost.group, cost.group.setting.plan
    groups = plan.pp * plan.dp
    waiting = floor_w(group.device) * (groups / np.minimum(groups, group.in_flight) - 1)
    prefill_j = prefill_j + waiting * cost.prefill_s
    if not group.generates:
        return plan.tp * prefill_j / (group.replica_batch * group.read)
    step_j = step_j + waiting * cost.step_s
    request_j = request_total(prefill_j, step_j / group.replica_batch, group.new_tokens)
    result: Float64Array = plan.tp * request_j / group.new_tokens
    return result


def energy_j_per_token(cost: GroupCost, i: int, found: Energies | Unsupported) -> Predicted:
    """Energy per token of request ``i`` with its interval, assuming independent errors of power and time.

    Args:
        cost: Cost of the group.
        i: Index of the request in the group.
        found: Energies of the group.

    Raises:
        Unsupported: The device lists no board power.
    """
    if isinstance(found, Unsupported):
        raise found
    halfwidth = float(np.hypot(found.log_halfwidth[i], cost.log_halfwidth[i]))
    return Predicted.around(float(found.token_j[i]), halfwidth)


def _refusal(device: DeviceProfile) -> Unsupported | None:
    try:
        floor_w(device)
    except Unsupported as error:
        return error
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    """A pass on a device, and its duration including gaps between kernels and host time."""

    device: DeviceProfile
    times: PassTimes
    total_s: Float64Array


def _passes(cost: GroupCost) -> tuple[_Drawing, _Drawing]:
    device = cost.group.device
    return (
        _Drawing(device=device, times=cost.prefill, total_s=cost.prefill_s),
        _Drawing(device=device, times=cost.decode, total_s=cost.step_s),
    )


def _pass_energies(passes: Sequence[_Drawing]) -> list[tuple[Float64Array, Float64Array]]:
    """Joules that one device uses in each pass, and the log half-width of their interval.

    During communication and host time, the device draws its idle power.
    """
    calls: list[Call] = []
    places: list[tuple[int, int]] = []  # (pass, part)
    for p, each in enumerate(passes):
        for k, part in enumerate(each.times.parts):
            if class_of(part.op.kind) != "collective":
                calls.append(Call(op=part.op, device=each.device, stack="", rows=len(each.total_s)))
                places.append((p, k))
    stops = np.cumsum([len(each.total_s) for each in passes])
    total = int(stops[-1]) if len(passes) else 0
    energy, spread, busy_s = np.zeros(total), np.zeros(total), np.zeros(total)
    for batch in batches(calls):
        members = [places[i] for i in batch.members]
        spent = np.concatenate([passes[p].times.kernel_s[k] for p, k in members])
        drawn = power(batch.op, batch.device, spent)
        rows = [len(passes[p].total_s) for p, _ in members]
        seconds = spent * np.repeat([passes[p].times.parts[k].count for p, k in members], rows)
        joules = drawn.power_w * seconds
        columns = np.concatenate([np.arange(stops[p] - n, stops[p]) for (p, _), n in zip(members, rows, strict=True)])
        energy += np.bincount(columns, joules, total)
        spread += np.bincount(columns, drawn.log_halfwidth * joules, total)
        busy_s += np.bincount(columns, seconds, total)
    found = []
    for each, stop in zip(passes, stops, strict=True):
        own = slice(stop - len(each.total_s), stop)
        share = np.minimum(each.total_s / busy_s[own], 1.0)  # kernels may be faster in serving than measured alone
        whole = share * energy[own] + floor_w(each.device) * np.maximum(each.total_s - busy_s[own], 0.0)
        found.append((whole, share * spread[own] / whole))
    return found

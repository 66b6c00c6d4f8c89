"""Energy of a served token: each kernel's power for its time, the devices' floor while the host is busy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chipwise.core.errors import Unsupported
from chipwise.cost.model import Predicted
from chipwise.predict.power import floor_w, power
from chipwise.serve.estimate import GroupCost
from chipwise.serve.steps import PassTimes, class_of

Array = npt.NDArray[np.float64]


def energies_j_per_token(cost: GroupCost) -> Array | None:
    """Joules of all devices for one new token of one request, its share of the prompt's pass included.

    None where the device lists no board power.
    """
    try:
        return _energies(cost)[0]
    except Unsupported:
        return None


def energy_j_per_token(cost: GroupCost, i: int) -> Predicted:
    """The energy of request ``i`` with its interval: errors of power and of time are taken as independent.

    Raises:
        Unsupported: The device lists no board power.
    """
    energy, log_halfwidth = _energies(cost)
    value, factor = float(energy[i]), float(np.exp(np.hypot(log_halfwidth[i], cost.log_halfwidth[i])))
    return Predicted(value=value, low=value / factor, high=value * factor)


def _energies(cost: GroupCost) -> tuple[Array, Array]:
    group = cost.group
    step_j, spread = _pass_energy(cost.decode, cost, total_s=cost.step_s)
    prefill_j, _ = _pass_energy(cost.prefill, cost, total_s=cost.prefill_s)
    plan = group.setting.plan
    replica_tokens = group.replica_batch
    return plan.tp * (step_j / replica_tokens + prefill_j / group.new_tokens), spread


def _pass_energy(times: PassTimes, cost: GroupCost, *, total_s: Array) -> tuple[Array, Array]:
    """Joules of one device in a pass, and the half width of its kernels' power in logarithms."""
    device = cost.group.device
    energy = np.zeros_like(total_s)
    spread = np.zeros_like(total_s)
    busy_s = np.zeros_like(total_s)
    floor = floor_w(device)
    for part, each in zip(times.parts, times.times, strict=True):
        if class_of(part.op.kind) == "collective":
            continue
        spent_s = part.count * each.latency_s
        drawn = power(part.op, device, each.latency_s)
        energy += drawn.power_w * spent_s
        spread += drawn.log_halfwidth * drawn.power_w * spent_s
        busy_s += spent_s
    energy += floor * np.maximum(total_s - busy_s, 0.0)
    return energy, spread / energy

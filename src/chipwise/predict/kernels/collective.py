"""Times of collectives among n devices: steps times latency, plus bytes over the link's bandwidth (alpha-beta model).

Three algorithms are compared, and the fastest is used. *Ring*: an all-reduce takes 2(n-1) steps, in which each device
sends 2(n-1)/n of the payload; other collectives take n-1 steps and send (n-1)/n. *Tree*: an all-reduce takes 2⌈log2 n⌉
steps and sends twice the payload. *One-shot*: an all-reduce takes one step, in which each device reads the full
payloads of all other devices; the all-reduce kernels of runtimes do this for small messages.

If a device has no link to other devices, its data go through its host. Each device then has its own link to the host,
which carries data in both directions at the same time. A device with neither link is Unsupported.

References:
    Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH.
    NVIDIA nccl-tests, PERFORMANCE.md (bus-bandwidth factors).
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.core.dtypes import Size
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.engines import Link
from chipwise.model.ops.collective import CollectiveOp
from chipwise.predict.kernels import bounded
from chipwise.predict.kernels.bounded import Fitted, columns, one_hot
from chipwise.predict.kernels.client_boards import HOST_S, THROUGH_HOST, without_peers
from chipwise.predict.kernels.times import KernelTimes, together

DEFAULTS = {
    "device": {"start_s": 4e-6, "step_s": 1.2e-6, "share": 0.80, "once_s": 3e-6, "once_share": 0.5, "crowding": 0.0},
    "host": {"start_s": 8e-6, "step_s": 2e-6, "share": 0.70, "once_s": 8e-6, "once_share": 0.3, "crowding": 0.5},
}
"""Constants of collectives that were not fitted: seconds of a call, of a step and of a one-shot call, and the shares of
the link's bandwidth that two devices achieve. With n devices, these shares are divided by n/2 to the power
``crowding``, because links to one host interfere."""
SHARPNESS = 1.5  # sharpness of the transition from latency to bandwidth
NAMES = ("all_reduce.vllm", "all_reduce.sglang", "all_reduce.trtllm", "all_reduce.nccl", "all_gather", "reduce_scatter",
         "all_to_all")  # fmt: skip


def link(device: DeviceProfile) -> Link:
    """The fastest link to other devices of the same kind, else the fastest link to the host.

    Raises:
        Unsupported: The data sheet lists neither link.
    """
    for target in ("device", "host"):
        found = [link for link in device.links if link.to == target]
        if found:
            return max(found, key=lambda each: each.bandwidth.number)
    raise Unsupported(
        f"{device.name} lists no link to other devices or to a host, so it cannot take part in a collective; if it has "
        f"a link, pass a device file of your own that lists it under links"
    )


def shares(collective: str, devices: Size) -> tuple[Float64Array, Float64Array]:
    """Number of steps of the ring algorithm, and the bytes that each device sends, as a share of the payload.

    All-reduce: 2(n-1) and 2(n-1)/n. All-gather, reduce-scatter, all-to-all: n-1 and (n-1)/n. Point to point: 1 and 1.
    """
    n = np.asarray(devices, dtype=np.float64)
    if collective == "p2p":
        return np.where(n > 1, 1.0, 0.0), np.where(n > 1, 1.0, 0.0)
    times_round = 2.0 if collective == "all_reduce" else 1.0
    return times_round * (n - 1), times_round * (n - 1) / n


def alpha_beta_s(op: CollectiveOp, bandwidth: float, constants: dict[str, float]) -> Float64Array:
    """Time of the fastest algorithm among ring, tree and one-shot; 0 for one device.

    In an all-to-all on a switch, the ring's steps overlap, so they count as ⌈log2 n⌉ steps.
    """
    n, payload = together(op.devices, op.payload_bytes)
    steps, share = shares(op.collective, n)
    crowded = np.maximum(n / 2, 1.0) ** constants["crowding"]
    seconds_per_byte = crowded / (constants["share"] * bandwidth)
    rounds = np.ceil(np.log2(np.maximum(n, 2.0)))
    hops = rounds if op.collective == "all_to_all" else steps
    seconds = _joined(constants["start_s"] + hops * constants["step_s"], share * payload * seconds_per_byte)
    if op.collective == "all_reduce":
        tree = _joined(constants["start_s"] + 2 * rounds * constants["step_s"], 2 * payload * seconds_per_byte)
        once = (n - 1) * payload * crowded / (constants["once_share"] * bandwidth)
        seconds = np.minimum(np.minimum(seconds, tree), constants["once_s"] + once)
    result: Float64Array = np.where(n > 1, seconds, 0.0)
    return result


def _joined(latency: Float64Array, transfer: Float64Array) -> Float64Array:
    """Combines latency and transfer time, which partly overlap, by a power mean between their sum and their maximum."""
    joined: Float64Array = (latency**SHARPNESS + transfer**SHARPNESS) ** (1 / SHARPNESS)
    return joined


def times(op: CollectiveOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of one collective among ``op.devices`` copies of ``device``, all on one switch or host.

    Args:
        op: The collective.
        device: Any data sheet with a link.
        stack: The stack whose all-reduce runs. All stacks use NCCL for collectives other than all-reduce.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device has no link; the fold is unknown.
    """
    way = link(device)
    fitted = bounded.load("collective")
    chosen = fitted.fold(device, fold)
    near = fitted.nearness(position(way), chosen)
    situation = fitted.situation(device, fold, position(way))
    hosted = without_peers(device)
    name = named(op, "nccl" if hosted else stack)
    constants = _constants(fitted, chosen, name, way.to)
    latency = alpha_beta_s(op, way.bandwidth.number, constants)
    inputs = features(op, device, latency, name=name, fitted=fitted, seen=situation == "seen")
    correction = np.exp(fitted.networks[chosen](inputs).reshape(latency.shape) * near)
    if hosted:
        constants = through_host(constants)
        latency = alpha_beta_s(op, way.bandwidth.number, constants)
    latency = latency * correction
    work = op.work()
    sent = np.asarray(work.link_bytes, dtype=np.float64) / way.bandwidth.number
    local = np.asarray(work.bytes, dtype=np.float64) / device.mem_bandwidth_bytes_per_s
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, fitted.halfwidth(way.to, situation)),
        compute_s=np.zeros(latency.shape),
        memory_s=np.broadcast_to(np.maximum(sent, local), latency.shape),
        launch_s=np.where(latency > 0, min(constants["start_s"], constants["once_s"]), 0.0),
        situation=situation,
    )


def through_host(constants: dict[str, float]) -> dict[str, float]:
    """Adapts ``constants`` to devices that cannot read each other's memory: each step uses the host's memory."""
    changed = {
        "share": THROUGH_HOST * constants["share"],
        "step_s": constants["step_s"] + HOST_S,
        "once_share": THROUGH_HOST * constants["once_share"],
        "once_s": constants["once_s"] + HOST_S,
    }
    return constants | changed


def named(op: CollectiveOp, stack: str) -> str:
    """Name of the collective in ``NAMES``. A point-to-point transfer is treated as a one-step gather of two devices."""
    return {"p2p": "all_gather", "all_reduce": f"all_reduce.{stack}"}.get(op.collective, op.collective)


def features(
    op: CollectiveOp, device: DeviceProfile, base: Float64Array, *, name: str, fitted: Fitted, seen: bool
) -> Float32Array:
    """Inputs of the network, (rows, inputs): sizes, the formula's time, collective, link, and device if ``seen``."""
    way = link(device)
    sizes = (np.maximum(op.payload_bytes, 1), op.devices, np.maximum(base, 1e-9) * 1e6)
    logs = [np.broadcast_to(np.log2(np.asarray(size, dtype=np.float64)), base.shape).reshape(-1) for size in sizes]
    which = one_hot(device.name if seen else "", list(fitted.devices))
    return columns([*logs, *one_hot(name, NAMES), *position(way), *which], base.size)


def position(way: Link) -> Float64Array:
    """Coordinates of a link: log2 of its GB/s, and a number for its kind. Links of different kinds are far apart."""
    return np.array([np.log2(way.bandwidth.number / 1e9), 4.0 if way.to == "host" else 0.0])


def _constants(fitted: Fitted, fold: str, name: str, way: str) -> dict[str, float]:
    table: dict[str, dict[str, float]] = fitted.facts["constants"][fold]
    return table.get(f"{way}.{name}") or DEFAULTS[way]

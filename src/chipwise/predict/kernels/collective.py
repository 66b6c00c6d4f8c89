"""Collectives among devices: steps times latency, plus bytes over the link (alpha-beta model), for the best algorithm.

Ring: 2(n-1) steps for an all-reduce, n-1 for the others, each device sending 2(n-1)/n or (n-1)/n of the payload. Tree:
2⌈log2 n⌉ steps, twice the payload. One-shot: one step in which each device reads the full payloads of all others;
runtimes' own all-reduce kernels do this with small messages. The fastest algorithm is used. A device without a link to
other devices goes through its host: each byte crosses the host link (in each step both outwards and inwards, at the
same time), and each device has its own host link. A device with neither link is Unsupported.

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
from chipwise.predict.kernels.times import KernelTimes

DEFAULTS = {
    "device": {"start_s": 4e-6, "step_s": 1.2e-6, "share": 0.80, "once_s": 3e-6, "once_share": 0.5, "crowding": 0.0},
    "host": {"start_s": 8e-6, "step_s": 2e-6, "share": 0.70, "once_s": 8e-6, "once_share": 0.3, "crowding": 0.5},
}
"""Defaults for unfitted cases: seconds of a call, of a step and of a one-shot call; the achieved share of the link's
bandwidth between two devices; and the power of n/2 by which this share falls with n devices, because links to one host
interfere."""
SHARPNESS = 1.5  # sharpness of the transition from latency to bandwidth
NAMES = ("all_reduce.vllm", "all_reduce.sglang", "all_reduce.trtllm", "all_reduce.nccl", "all_gather", "reduce_scatter",
         "all_to_all")  # fmt: skip


def link(device: DeviceProfile) -> Link:
    """The fastest link to other devices of the same kind, else to the host.

    Raises:
        Unsupported: The device lists no such link.
    """
    for target in ("device", "host"):
        found = [link for link in device.links if link.to == target]
        if found:
            return max(found, key=lambda each: each.bandwidth.number)
    raise Unsupported(
        f"{device.name} lists no link to other devices or to a host, so it cannot take part in a collective; if it has "
        f"one, pass a device file of your own with it under links"
    )


def shares(collective: str, devices: Size) -> tuple[Float64Array, Float64Array]:
    """Steps of the ring, and bytes that each device sends as a share of the payload.

    All-reduce: 2(n-1) and 2(n-1)/n. All-gather, reduce-scatter, all-to-all: n-1 and (n-1)/n. Point to point: 1 and 1.
    """
    n = np.asarray(devices, dtype=np.float64)
    if collective == "p2p":
        return np.where(n > 1, 1.0, 0.0), np.where(n > 1, 1.0, 0.0)
    times_round = 2.0 if collective == "all_reduce" else 1.0
    return times_round * (n - 1), times_round * (n - 1) / n


def alpha_beta_s(op: CollectiveOp, bandwidth: float, constants: dict[str, float]) -> Float64Array:
    """Least time of ring, tree and one-shot; 0 for one device.

    All-to-all is one step on a switch: its ring's steps overlap, so they count by ⌈log2 n⌉ like a tree's.
    """
    n, payload = np.broadcast_arrays(
        np.asarray(op.devices, dtype=np.float64), np.asarray(op.payload_bytes, dtype=np.float64)
    )
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
    """Latency and transfer that partly overlap: a power mean between their sum and their maximum."""
    joined: Float64Array = (latency**SHARPNESS + transfer**SHARPNESS) ** (1 / SHARPNESS)
    return joined


def times(op: CollectiveOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of one collective among ``op.devices`` of ``device``, all on one switch or host.

    Args:
        op: The collective.
        device: Any data sheet with a link.
        stack: The stack whose all-reduce runs; all stacks use NCCL's other collectives.
        fold: None for the bundled values, else ``device:NAME`` or ``family:NAME`` for the model fitted without them.

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
    """The constants of devices that cannot read each other's memory: each step goes through the host's memory."""
    changed = {
        "share": THROUGH_HOST * constants["share"],
        "step_s": constants["step_s"] + HOST_S,
        "once_share": THROUGH_HOST * constants["once_share"],
        "once_s": constants["once_s"] + HOST_S,
    }
    return constants | changed


def named(op: CollectiveOp, stack: str) -> str:
    """Name of the collective in ``NAMES``. Point to point is priced as a gather between two devices (one step)."""
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
    """Coordinates of a link for distances: base-2 logarithm of its GB/s, and its kind (kinds are far apart)."""
    return np.array([np.log2(way.bandwidth.number / 1e9), 4.0 if way.to == "host" else 0.0])


def _constants(fitted: Fitted, fold: str, name: str, way: str) -> dict[str, float]:
    table: dict[str, dict[str, float]] = fitted.facts["constants"][fold]
    return table.get(f"{way}.{name}") or DEFAULTS[way]

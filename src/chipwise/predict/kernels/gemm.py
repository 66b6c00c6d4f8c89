"""Times of matrix products: a physical formula with fitted constants, a network that corrects it, and intervals.

If kernels of this device, stack and format were measured, a network that knows device, stack and format corrects the
formula. Otherwise a second, smaller network is used, which knows only the device's class (shared by similar devices).
If the fit has no device of that class, this network ignores the class, and its correction shrinks as the device's data
sheet differs more from those in the fit. ``chipwise fit`` writes the bundled values.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.core.statistics import weighted_quantile
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import alignment
from chipwise.predict.kernels.bounded import DATA, SHIPPED, STACKS
from chipwise.predict.kernels.gemm_features import features
from chipwise.predict.kernels.gemm_formats import path_of
from chipwise.predict.kernels.gemm_network import ARRAYS, Network, from_arrays
from chipwise.predict.kernels.gemm_physics import Machine, parts, units_and_clock
from chipwise.predict.kernels.times import KernelTimes, Situation, together

ANY = "*"  # class of a device without similar devices in the fit
REACH = 3.0  # distance, in doublings of data-sheet figures, over which the correction shrinks to 1/e
NEAR = 0.4  # distance, in doublings, over which one device's errors lose weight for another
FAR = {"sibling": 0.75, "unseen": 2.0}  # largest distance, in doublings, for which half-widths were validated
WIDENING = 0.5  # relative growth of a half-width per doubling of the distance beyond FAR
SUBSTITUTE = 1.5  # factor on half-widths where another format's kernels replace unmeasured ones
WIDEST = 1.5  # half-width if hardly anything is known: a factor of 4.5 up or down
SHARE = 0.9
GRID = 256.0
Facts = Mapping[str, Any]


def times(op: Matmul, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` (its sizes may be arrays) on ``device``, including the quantisation of its activations.

    Args:
        op: The matrix product.
        device: Any data sheet.
        stack: The stack whose kernels run; a stack that was not measured counts as ``vllm``.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device has no rate for the multiplied format, or the fold does not exist.
    """
    path = path_of(op.weights, op.activations, device)
    m, n, k = together(op.m, op.n, op.k)
    shape = m.shape
    m, n, k = m.ravel(), n.ravel(), k.ravel()
    name = fold_name(fold, device)
    facts = fitted()["folds"][name]
    machine = Machine.of(device, path)
    stack, kernels = _nearest(facts["own"], stack, path.name)
    constants = facts["shared"], facts["own"][f"{stack}|{kernels}"]
    found = parts(m, n, k, machine, *constants)
    near_n, near_k = on_grid(n), on_grid(k)
    on = np.array_equal(near_n, n) and np.array_equal(near_k, k)
    x_FR = features(m, near_n, near_k, machine, found if on else parts(m, near_n, near_k, machine, *constants))
    correction, width, situation = _correction(x_FR, device, path.name, name, stack, kernels)
    moved_s = found.bytes / device.mem_bandwidth_bytes_per_s
    total_s, doubt = found.total_s, None
    halved = alignment.halvings(m, _unmeasured(n, near_n), _unmeasured(k, near_k), path, device)
    if halved.any():
        total_s, doubt = _misaligned(m, n, k, machine, constants, alignment.for_each_halving(device.name) * halved)
    return KernelTimes(
        latency_s=(total_s * np.exp(correction)).reshape(shape),
        log_halfwidth=np.broadcast_to(width if doubt is None else np.hypot(width, doubt), m.shape).reshape(shape),
        doubt=None if doubt is None else doubt.reshape(shape),
        compute_s=(2 * m * n * k / path.peak_flops_per_s).reshape(shape),
        memory_s=moved_s.reshape(shape),
        launch_s=found.launch_s.reshape(shape),
        situation=situation,
    )


def on_grid(size: Float64Array) -> Float64Array:
    """Rounds ``size`` down to a size on the measured grid: a multiple of 256, or a power of two below 256.

    The network computes its correction for the rounded size. The physical formula uses the exact size, so it counts
    partly filled tiles.
    """
    return np.where(size >= GRID, np.floor(size * (1 / GRID)) * GRID, np.exp2(np.floor(np.log2(np.maximum(size, 1.0)))))


def _misaligned(
    m: Float64Array,
    n: Float64Array,
    k: Float64Array,
    machine: Machine,
    constants: tuple[Facts, Facts],
    cost: Float64Array,
) -> tuple[Float64Array, Float64Array]:
    """Seconds if tiles take exp(``cost``) times as long, and the log half-width due to the uncertainty of ``cost``."""
    low_s, total_s, high_s = (
        parts(m, n, k, machine, *constants, slower=np.exp(cost * share)).total_s
        for share in (1 - alignment.DOUBT, 1.0, 1 + alignment.DOUBT)
    )
    return total_s, np.log(np.maximum(high_s / total_s, total_s / low_s))


def _unmeasured(size: Float64Array, near: Float64Array) -> Float64Array:
    """Replaces sizes on the measured grid by an aligned size; keeps all other sizes.

    Measurements on the grid already include the effect of misalignment, so only other sizes get a factor for it.
    """
    return np.where(near == size, GRID, size)


def _correction(
    x_FR: Float32Array, device: DeviceProfile, path: str, fold: str, stack: str, kernels: str
) -> tuple[Float64Array, float, Situation]:
    """Returns the network's correction and its half-width, both as logarithms, and the situation."""
    facts = fitted()["folds"][fold]
    nets = networks()
    kind = f"{device.name}|{stack}|{kernels}"
    if fold == SHIPPED and kind in nets["seen"].kinds and kernels == path:
        return nets["seen"](x_FR, kind), facts["log_halfwidth"]["seen"][kind], "seen"
    net = nets[fold]
    kind = f"{class_of(device)}|{stack}|{kernels}"
    measured = kernels == path
    situation: Situation = "sibling" if kind in net.kinds and measured else "unseen"
    beyond = distance(device, facts["hardware"])
    trust = 1.0 if situation == "sibling" else float(np.exp(-((beyond / REACH) ** 2)))
    correction = trust * net(x_FR, kind if situation == "sibling" else f"{ANY}|{stack}|{kernels}")
    width = halfwidth(hardware(device), kernels, fold, situation) * (1 + WIDENING * max(0.0, beyond - FAR[situation]))
    return correction, min(WIDEST, width * (1.0 if measured else SUBSTITUTE)), situation


@functools.cache
def halfwidth(here: tuple[float, ...], path: str, fold: str, situation: Situation) -> float:
    """Half-width of the 90 % interval in logarithms, from the errors on similar devices that a fit left out.

    Args:
        here: The figures of the device from :func:`hardware`.
        path: The kernel path, see :class:`KernelPath`.
        fold: The fold. The errors on each of its devices come from a fit without that device.
        situation: ``sibling`` or ``unseen``.

    Devices with a similar data sheet get a larger weight; devices of one class share one weight. Two half-widths are
    computed, from the errors of this path and from those of all paths, and the larger one is returned.

    References:
        Tibshirani et al. 2019, Conformal prediction under covariate shift.
    """
    misses: Mapping[str, Mapping[str, list[float]]] = fitted()["folds"][fold]["misses"][situation]
    known = {name: datasheet.load(name) for name in misses}
    classes = [class_of(device) for device in known.values()]
    away = [np.linalg.norm(np.asarray(here) - np.asarray(hardware(device))) / NEAR for device in known.values()]
    values: list[float] = []
    weights: list[float] = []
    of_path: list[bool] = []
    for paths, name, far in zip(misses.values(), classes, away, strict=True):
        weight = float(np.exp(min(away) - far)) / classes.count(name)
        for other, found in paths.items():
            values += found
            weights += [weight / len(found)] * len(found)
            of_path += [other == path] * len(found)
    value, share, mine = np.asarray(values), np.asarray(weights), np.asarray(of_path)
    chosen = [np.ones_like(mine), mine] if mine.any() else [np.ones_like(mine)]
    return max(weighted_quantile(value[rows], share[rows], SHARE) for rows in chosen)


def fold_name(fold: str | None, device: DeviceProfile | None = None) -> str:
    """Stored name of the fit that leaves out the data of ``fold``; the full fit's name if there are no such data.

    A fit that leaves out a family may still contain a device of the family, if the device's class differs (see
    :func:`class_of`). For example, the fit without Blackwell contains the RTX PRO 6000, whose units are a quarter as
    wide. If ``device`` is such a device, the fit that leaves out only ``device`` is used instead.

    Raises:
        Unsupported: ``fold`` is neither None, ``device:NAME`` nor ``family:NAME``.
    """
    if fold is None or fold == SHIPPED:
        return SHIPPED
    what, _, name = fold.partition(":")
    if what not in ("device", "family") or not name:
        raise Unsupported(f"no fold {fold!r}; folds are device:NAME and family:NAME, such as device:h100-sxm")
    folds, same = fitted()["folds"], fitted()["same_as"]
    key = f"device:{datasheet.load(name).name}" if what == "device" else f"family:{name.lower()}"
    key = same.get(key, key)
    if key not in folds:
        return SHIPPED
    if (
        device is not None
        and what == "family"
        and device.family == name.lower()
        and device.name in folds[key]["hardware"]
    ):
        return f"device:{device.name}"
    return str(key)


def class_of(device: DeviceProfile) -> str:
    """The device's class: its family, and its 16-bit FLOPs per clock and unit, rounded to a power of two."""
    return f"{device.family}/{round(hardware(device)[3])}"


def hardware(device: DeviceProfile) -> tuple[float, float, float, float]:
    """Base-2 logarithms of memory bandwidth, FLOPs per byte, number of units, and 16-bit FLOPs per clock and unit."""
    peak = device.rate("bf16", "fp16", "fp32", "int8", "fp8")
    if peak is None:
        raise Unsupported(f"{device.name} lists no arithmetic rate; pass a device file of your own that has one")
    bandwidth = device.mem_bandwidth_bytes_per_s
    units, clock = units_and_clock(device)
    each = peak / units / clock
    return (float(np.log2(bandwidth)), float(np.log2(peak / bandwidth)), float(np.log2(units)), float(np.log2(each)))


def distance(device: DeviceProfile, seen: Mapping[str, Sequence[float]]) -> float:
    """Distance between ``device`` and the nearest device of ``seen``: Euclidean, in the figures of :func:`hardware`."""
    here = np.asarray(hardware(device))
    return min(float(np.linalg.norm(here - np.asarray(there))) for there in seen.values())


def _nearest(own: Facts, stack: str, path: str) -> tuple[str, str]:
    """The closest measured combination of stack and path: other stacks are tried first, then other paths."""
    stack = stack.lower().replace("-", "").replace("tensorrtllm", "trtllm")
    stacks = (stack, *STACKS) if stack in STACKS else STACKS
    near = {"wide": ("bf16",), "w8a8": ("fp8",), "w4a16": ("w8a16", "bf16"), "w8a16": ("bf16",), "fp8_block": ("fp8",)}
    for candidate in (path, *near.get(path, ()), "fp8", "bf16"):
        for known in stacks:
            if f"{known}|{candidate}" in own:
                return known, candidate
    raise Unsupported(f"no constants were fitted for products in {path}; run: chipwise fit --from aiconfigurator")


@functools.cache
def fitted() -> dict[str, Any]:
    """Reads ``gemm.json``: the constants and half-widths of each fold, and the provenance."""
    found: dict[str, Any] = json.loads((DATA / "gemm.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def networks() -> dict[str, Network]:
    """Reads the networks in ``gemm.npz``: ``seen`` for measured kernels, and one network for each fold."""
    facts = fitted()["networks"]
    with np.load(DATA / "gemm.npz", allow_pickle=False) as stored:
        return {
            name: from_arrays({part: stored[f"{name}/{part}"] for part in ARRAYS}, tuple(net["kinds"]), net["bound"])
            for name, net in facts.items()
        }

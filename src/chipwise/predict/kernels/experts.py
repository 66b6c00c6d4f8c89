"""Times of fused mixture-of-experts kernels: dispatch, grouped matrix products and combine in one call.

In the formula, the weights of each expert with at least one row are read once, the rows are padded to whole tiles and
multiplied, and several small kernels add a minimum time. Three quantities are fitted constants: the achieved share of
the peak rate, the achieved share of the bandwidth, and the minimum time. They depend on the stack and the weight
format, and are fitted to all devices together. A network with bounded output corrects the remaining error
(:mod:`.bounded`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.core.dtypes import Size, values_bytes, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import GroupedMatmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import analytic, bounded, routing
from chipwise.predict.kernels.bounded import STACKS, Fitted, columns, hardware, one_hot
from chipwise.predict.kernels.times import KernelTimes, launch_s

ROUTING = "power_law_1.2"  # the distribution by which the fit's tables imitate real routers
FORMATS = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "mxfp4_fp8", "int4")
DEFAULTS = {"compute": 0.45, "memory": 0.65, "kernels": 8.0, "power": 2.0}  # for unfitted stacks and formats
TILE_ROWS = 16.0  # fewest rows of a grouped matrix product's tile: one matrix instruction
WIDEST_TILE_ROWS = 128.0
LOG_HALFWIDTH = 0.9  # for a single grouped matrix product, which was never timed alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Quantities of a grouped matrix product that the formula and the network use."""

    load: routing.RoutedLoad
    compute_s: Float64Array  # without padding
    padded_s: Float64Array  # with padding
    memory_s: Float64Array
    matrices: float


def format_class(weights: str, activations: str) -> str:
    """The class of kernels, one of ``FORMATS``, that multiplies these weights with these activations."""
    if weights == "mxfp4":
        return "mxfp4_fp8" if activations.startswith("fp8") else "mxfp4"
    if weights == "nvfp4":
        return "nvfp4"
    if weights.startswith("fp8"):
        return "fp8_block" if weights == "fp8_block" else "fp8"
    return "int4" if weights.startswith(("int4", "q4")) else "bf16"


def multiplied_in(weights: str, activations: str) -> str:
    """The number format of the matrix products: MXFP4 and 4-bit integers are widened to the activations' format."""
    kind = format_class(weights, activations)
    if kind in ("mxfp4", "int4"):
        return activations if activations not in ("fp32", "tf32") else "bf16"
    wide = activations if kind == "bf16" else "bf16"
    return {"nvfp4": "fp4", "mxfp4_fp8": "fp8", "fp8": "fp8", "fp8_block": "fp8"}.get(kind, wide)


def product_peak(weights: str, activations: str, device: DeviceProfile) -> float:
    """Peak FLOP/s of the matrix products.

    If the device lists no rate for narrow weights, they are widened to the format of 16-bit activations.

    Raises:
        Unsupported: The device has no rate for the number format of the matrix products.
    """
    try:
        return analytic.peak(device, multiplied_in(weights, activations))
    except Unsupported:
        if activations in ("bf16", "fp16") and activations in device.peak_flops_per_s:
            return device.peak(activations)
        raise


def times(
    op: ExpertsOp | GroupedMatmul,
    device: DeviceProfile,
    *,
    stack: str = "vllm",
    fold: str | None = None,
    routing: str = ROUTING,
) -> KernelTimes:
    """Seconds of the fused call on the busiest of the devices that share the experts.

    Args:
        op: Experts, or a single grouped matrix product. A single product gets a third of the minimum time and is not
            corrected by the network.
        device: Any data sheet.
        stack: ``vllm``, ``sglang`` or ``trtllm``.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.
        routing: ``uniform``, ``balanced`` or ``power_law_A``.

    Raises:
        Unsupported: The device has no rate for the matrix products' format; the routing or fold is unknown.
    """
    fitted = bounded.load("experts")
    kind = format_class(op.weights, op.activations)
    numbers = grouped(op, device, routing=routing)
    chosen = fitted.fold(device, fold)
    constants = _constants(fitted, chosen, stack, kind)
    launch = launch_s(device)
    latency = base_s(numbers, constants, launch)
    situation = fitted.situation(device, fold, hardware(device))
    halfwidth = fitted.halfwidth(stack, situation)
    if isinstance(op, GroupedMatmul):  # single grouped matrix products were not timed separately
        situation, halfwidth = "unseen", LOG_HALFWIDTH
    else:
        inputs = features(
            op, device, numbers, latency, stack=stack, routing=routing, fitted=fitted, seen=situation == "seen"
        )
        correction = fitted.networks[chosen](inputs).reshape(latency.shape)
        latency = latency * np.exp(correction * fitted.nearness(hardware(device), chosen))
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, halfwidth),
        compute_s=numbers.compute_s,
        memory_s=numbers.memory_s,
        launch_s=np.full(latency.shape, launch),
        situation=situation,
    )


def grouped(op: ExpertsOp | GroupedMatmul, device: DeviceProfile, *, routing: str) -> Grouped:
    """The load of the busiest device, its seconds of computing at the dense peak, and its seconds of moving bytes.

    Raises:
        Unsupported: The device has no rate for the matrix products' format.
    """
    topk: Size
    if isinstance(op, GroupedMatmul):
        tokens, local, total, topk, d_model, width, matrices = op.tokens, op.groups, op.groups, 1, op.k, op.n, 1.0
        routing = "balanced"
    else:
        tokens, local, total, topk = op.tokens, op.local_experts, op.experts, op.topk
        d_model, width, matrices = op.d_model, op.width, 3.0 if op.gated else 2.0
    load = _load(tokens, topk, total, local, routing)
    expert = matrices * weight_format(op.weights).matrix_bytes(d_model, width)
    into = values_bytes(1, op.activations)
    moved = load.met * expert + load.rows * (into * (d_model + width) + 2.0 * (d_model + (matrices - 1) * width))
    per_row = 2.0 * matrices * np.asarray(d_model, dtype=np.float64) * width
    peak = product_peak(op.weights, op.activations, device)
    compute, padded, memory = np.broadcast_arrays(
        load.rows * per_row / peak, load.padded * per_row / peak, moved / device.mem_bandwidth_bytes_per_s
    )
    return Grouped(load=load, compute_s=compute, padded_s=padded, memory_s=memory, matrices=matrices)


def base_s(numbers: Grouped, constants: dict[str, float], launch: float) -> Float64Array:
    """Seconds by the formula: several launches, plus a power mean of computing time and memory time.

    Both times assume the achieved shares of the peak rates.
    """
    power = constants["power"]
    compute, memory = numbers.padded_s / constants["compute"], numbers.memory_s / constants["memory"]
    floor = constants["kernels"] * launch * (1.0 if numbers.matrices > 1 else 1 / 3)
    joined: Float64Array = floor + (compute**power + memory**power) ** (1 / power)
    return joined


def features(
    op: ExpertsOp,
    device: DeviceProfile,
    numbers: Grouped,
    base: Float64Array,
    *,
    stack: str,
    routing: str,
    fitted: Fitted,
    seen: bool,
) -> Float32Array:
    """Inputs of the network, (rows, inputs): sizes, limits, routing, stack, format, hardware, device if ``seen``."""
    shape = base.shape
    size = int(base.size)
    kind = format_class(op.weights, op.activations)

    def log2(value: Size) -> Float64Array:
        return np.broadcast_to(np.log2(np.asarray(value, dtype=np.float64)), shape).reshape(-1)

    sizes = [log2(value) for value in (op.tokens, op.d_model, op.width, op.experts, op.local_experts, op.topk)]
    limits = [
        log2(base * 1e6),
        log2(numbers.padded_s / numbers.memory_s),
        log2(numbers.memory_s * 1e6),
        log2(numbers.load.rows / numbers.load.met),
        log2(numbers.load.met),
    ]
    exponent = _skew(routing)
    which = [float(exponent is None), exponent or 0.0, float(op.gated)]
    which += one_hot(stack, STACKS) + one_hot(kind, FORMATS) + list(hardware(device))
    peak = product_peak(op.weights, op.activations, device)
    which.append(float(np.log2(peak / 1e12)))
    which += one_hot(device.name if seen else "", list(fitted.devices))
    return columns([*sizes, *limits, *which], size)


def _load(tokens: Size, topk: Size, total: Size, local: Size, law: str) -> routing.RoutedLoad:
    rows_each = np.asarray(tokens, dtype=np.float64) * topk / total
    tile = np.clip(2.0 ** np.ceil(np.log2(np.maximum(rows_each, 1.0))), TILE_ROWS, WIDEST_TILE_ROWS)
    return routing.load(tokens, topk, total, local, routing=law, tile=tile)


_skew = routing.skew  # ``routing`` is also the name of an argument here


def _constants(fitted: Fitted, fold: str, stack: str, kind: str) -> dict[str, float]:
    table: dict[str, dict[str, float]] = fitted.facts["constants"][fold]
    return table.get(f"{stack}.{kind}") or table.get(f"vllm.{kind}") or DEFAULTS

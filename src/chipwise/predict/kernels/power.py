"""Power of a kernel from its utilisation: idle power plus the power of computing and moving data, up to a limit.

power = floor + (limit - floor) · (1 - exp(-(a·c + m·b + k))), where c and b are the shares of the dense peak and of the
memory bandwidth that the kernel reaches; a, m and k are fitted. The exponential models the board's power limit: near
it, clocks fall and power does not rise. For attention and experts on measured devices, a network with bounded output
corrects the formula. In all other cases, the interval comes from the formula's errors on kinds of kernels that a fit
left out. The predicted power is that of a kernel called again and again without gaps; between kernels, a device draws
its idle power, the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.core.dtypes import Size
from chipwise.errors import SpecError
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.power_draw import PHONE_LOG_HALFWIDTH, floor_w, limit_w
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import analytic, bounded, experts
from chipwise.predict.kernels.bounded import Fitted, columns, one_hot
from chipwise.predict.kernels.routing import skew

DEFAULTS = {"compute": 2.5, "memory": 1.5, "constant": 0.2}  # assumed constants, used without a fit
LOG_HALFWIDTH = 0.6
LEAST_SHARE = 1e-5  # least share of a limit; lower utilisations are raised to this


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts of the board while it runs the same kernel without gaps."""

    power_w: Float64Array
    log_halfwidth: Float64Array  # 90 % of true values lie within power_w * exp(±log_halfwidth), and under limit_w
    limit_w: float


def power(
    op: Op, device: DeviceProfile, latency_s: Size, *, routing: str = experts.ROUTING, fold: str | None = None
) -> Power:
    """Power of ``op``, which takes ``latency_s`` on ``device``. Sizes and latencies may be arrays of one shape.

    Args:
        op: The operator.
        device: A data sheet with a board power.
        latency_s: Seconds of one call, measured or predicted.
        routing: How tokens are distributed over experts.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device lists no board power (and is not a phone's chip), or no rate for the operator's format.
        SpecError: A latency is not above zero.
    """
    limit = limit_w(device)
    latency = np.asarray(latency_s, dtype=np.float64)
    if not np.all(latency > 0):
        raise SpecError("must be above zero seconds", field="latency_s")
    fitted = bounded.load("power")
    situation = fitted.situation(device, fold)
    measured, without = situation == "seen", situation == "unseen" and fold is not None
    compute, memory = utilisation(op, device, latency, routing=routing)
    phase = phase_of(op)
    constants = DEFAULTS if without else _constants(fitted, phase if measured else "all")
    watts = base_w(compute, memory, floor_w(device), limit, constants)
    if measured and phase in fitted.networks:
        inputs = features(op, compute, memory, latency, routing=routing)
        watts = watts * np.exp(fitted.networks[phase](inputs).reshape(watts.shape))
    watts = np.clip(watts, floor_w(device), limit)
    if without:
        halfwidth = LOG_HALFWIDTH
    else:
        halfwidth = fitted.halfwidth(phase, "seen") if measured else fitted.halfwidth("all", "unseen")
    if device.board_power is None:
        halfwidth = math.hypot(halfwidth, PHONE_LOG_HALFWIDTH)
    return Power(
        power_w=watts,
        log_halfwidth=np.full(watts.shape, halfwidth),
        limit_w=limit,
    )


def utilisation(
    op: Op, device: DeviceProfile, latency: Float64Array, *, routing: str
) -> tuple[Float64Array, Float64Array]:
    """Shares of the dense peak and of the memory bandwidth, at most 1, that ``op`` reaches if it takes ``latency``.

    Raises:
        Unsupported: The device has no rate for the operator's format.
    """
    if isinstance(op, ExpertsOp):
        numbers = experts.grouped(op, device, routing=routing)
        compute_s, memory_s = numbers.compute_s, numbers.memory_s
    else:
        compute_s, memory_s = analytic.limits(op, device)
    compute, memory, _ = np.broadcast_arrays(compute_s / latency, memory_s / latency, latency)
    return np.clip(compute, 0.0, 1.0), np.clip(memory, 0.0, 1.0)


def base_w(
    compute: Float64Array, memory: Float64Array, floor: float, limit: float, constants: Mapping[str, float]
) -> Float64Array:
    """Watts by the formula. They lie between ``floor`` and ``limit``, and rise with both utilisations."""
    driven = constants["compute"] * compute + constants["memory"] * memory + constants["constant"]
    watts: Float64Array = floor + (limit - floor) * -np.expm1(-driven)
    return watts


def phase_of(op: Op) -> str:
    """Key of the constants for ``op``: ``context``, ``decode``, ``experts``, or ``all`` for other operators."""
    if isinstance(op, ExpertsOp):
        return "experts"
    if isinstance(op, AttentionOp):
        return (
            "decode"
            if np.all(np.asarray(op.query_tokens) == 1) and np.any(np.asarray(op.past_tokens) > 0)
            else "context"
        )
    return "all"


def features(
    op: Op, compute: Float64Array, memory: Float64Array, latency: Float64Array, *, routing: str
) -> Float32Array:
    """Inputs of the network, (rows, inputs): utilisations, time, and sizes that determine how work is distributed."""
    shape = np.broadcast_shapes(compute.shape, latency.shape)

    def log2(value: Size) -> Float64Array:
        whole = np.maximum(np.asarray(value, dtype=np.float64), LEAST_SHARE)
        return np.broadcast_to(np.log2(whole), shape).reshape(-1)

    rows: list[Float64Array | float] = [log2(compute), log2(memory), log2(latency * 1e6)]
    if isinstance(op, ExpertsOp):
        sizes: tuple[Size, ...] = (op.tokens, op.d_model, op.width, op.experts, op.local_experts, op.topk)
        each = np.asarray(op.tokens, dtype=np.float64) * op.topk / op.experts
        exponent = skew(routing)
        rows += [*(log2(size) for size in sizes), log2(each), float(exponent is None), exponent or 0.0]
        rows += one_hot(experts.format_class(op.weights, op.activations), experts.FORMATS)
        rows.append(float(op.gated))
    elif isinstance(op, AttentionOp):
        total = np.asarray(op.past_tokens, dtype=np.float64) + op.query_tokens
        window = total if op.window is None else np.minimum(np.asarray(op.window, dtype=np.float64), total)
        blocks = np.asarray(op.batch, dtype=np.float64) * op.kv_heads
        sizes = (
            op.batch,
            op.query_tokens,
            total,
            op.heads,
            op.kv_heads,
            op.head_size,
            window,
            blocks * op.query_tokens,
        )
        rows += [*(log2(size) for size in sizes), log2(np.asarray(op.heads) / op.kv_heads), log2(blocks * window)]
        rows += [float(op.cache.startswith("fp8")), float(op.window is not None)]
    return columns(rows, int(np.prod(shape, dtype=int)))


def _constants(fitted: Fitted, phase: str) -> Mapping[str, float]:
    table: Mapping[str, Mapping[str, float]] = fitted.facts["constants"]
    return table.get(phase) or table["all"]

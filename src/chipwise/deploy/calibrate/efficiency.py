"""Utilisation of the machine by a measured model: its FLOP/s and bytes/s relative to the calibrated peaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.deploy.measure.measurement import Measurement
from chipwise.errors import Unsupported
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.pricing import op_price, working_set_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Model FLOP and bandwidth utilisation at the measured medians, relative to peaks calibrated on this machine.

    ``mfu`` is the FLOP/s of prefill divided by the peak of matrix products in the weights' format. ``mbu`` is the rate
    at which a decode step reads weights and cache, divided by the bandwidth of the memory level that holds the step's
    working set (``ceiling`` names the level). Small models fit in a cache level. Small matrix products and kernel
    launches keep ``mfu`` and ``mbu`` below 1.
    """

    mfu: float | None
    mbu: float
    peak_flops_per_s: float | None
    bandwidth_bytes_per_s: float
    ceiling: str


def efficiency(design: Design, measured: Measurement, profile: MachineProfile) -> Efficiency:
    """MFU and MBU of ``measured`` relative to the calibrated peaks in ``profile``.

    Raises:
        Unsupported: The design has an operator that the profile has no rates for.
    """
    prefill, decode = (
        np.sum([op_needs(each.op, profile) for each in lower(design, measured.workload, phase)], axis=0)
        for phase in Phase
    )
    prefill_s, step_s = least_times(prefill, decode, profile)
    product_s, product_flops, *_ = prefill
    touched = decode[-1]
    ceiling, _, bandwidth = next(level for level in _levels(profile) if touched <= level[1])
    known = math.isfinite(product_s)
    return Efficiency(
        mfu=float(prefill_s) / measured.percentile("ttft", 0.5) if known else None,
        mbu=float(step_s) / measured.percentile("tpot", 0.5),
        peak_flops_per_s=float(product_flops / product_s) if known else None,
        bandwidth_bytes_per_s=bandwidth,
        ceiling=ceiling,
    )


def op_needs(op: Op, profile: MachineProfile) -> Float64Array:
    """Returns four numbers about the work of an operator, (4,); those of a pass are sums over its operators.

    The numbers are: the seconds of the operator's matrix products at the peak FLOP/s of their weight format (NaN if
    this peak was not calibrated), the FLOPs of its matrix products, all its FLOPs, and the bytes that it touches.

    Raises:
        Unsupported: The profile has no rates for this operator.
    """
    flops = op.work().flops
    products = flops if isinstance(op, Matmul) else 0
    seconds = products / profile.peaks.get(op.weights, math.nan) if isinstance(op, Matmul) else 0.0
    return np.array([seconds, products, flops, float(working_set_bytes(op_price(op, profile)))])


def least_times(
    prefill: Float64Array, decode: Float64Array, profile: MachineProfile
) -> tuple[Float64Array, Float64Array]:
    """Returns the seconds of prefill at peak FLOP/s, and of a decode step at full bandwidth, each (n,).

    Args:
        prefill: The four numbers of :func:`op_needs` for prefill, (n, 4).
        decode: The same four numbers for a decode step, (n, 4).
        profile: The calibration.
    """
    product_s, products, flops, _ = np.moveaxis(prefill, -1, 0)
    touched, levels = decode[..., -1], _levels(profile)
    bandwidths = np.select([touched <= size for _, size, _ in levels], [rate for *_, rate in levels])
    return flops * product_s / products, touched / bandwidths


def _levels(profile: MachineProfile) -> list[tuple[str, float, float]]:
    """Lists name, bytes and bandwidth of each known memory level, smallest first; the last has infinite size."""
    machine, roofs = profile.machine, profile.roofs
    if not roofs:
        raise Unsupported("the calibration lacks the memory bandwidth; calibrate again with: chipwise calibrate")
    sizes = {"private caches": machine.l2_bytes, "shared cache": machine.l3_bytes}
    found = [(name, float(size), roofs[name]) for name, size in sizes.items() if size is not None and name in roofs]
    last = "DRAM" if "DRAM" in roofs else min(roofs, key=lambda name: roofs[name])
    return [*found, (last, math.inf, roofs[last])]

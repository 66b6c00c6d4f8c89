"""Utilisation of the machine by a measured model: FLOPs and bytes of a pass relative to the calibrated peaks."""

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

    ``mfu`` is the FLOP/s of prefill over the peak of matrix products in the weights' format; ``mbu`` is the rate at
    which a decode step reads weights and cache, over the bandwidth of the memory level that holds its working set
    (``ceiling`` names the level). Small models fit in a cache level. Small products and kernel launches keep both below
    1.
    """

    mfu: float | None
    mbu: float
    peak_flops_per_s: float | None
    bandwidth_bytes_per_s: float
    ceiling: str


def efficiency(design: Design, measured: Measurement, profile: MachineProfile) -> Efficiency:
    """MFU and MBU of ``measured`` against the ceilings in ``profile``.

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
    """What an operator needs of the machine, (4,); needs of a pass add up.

    Seconds of its products at the peak of their weights' format (NaN if that was not calibrated), FLOPs of its
    products, all its FLOPs, and bytes that it touches.

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
    """Least seconds of prefill at the peak of its products, and of a decode step at the bandwidth, each (n,).

    Args:
        prefill: Needs of prefill, (n, 4).
        decode: Needs of a decode step, (n, 4).
        profile: The calibration.
    """
    product_s, products, flops, _ = np.moveaxis(prefill, -1, 0)
    touched, levels = decode[..., -1], _levels(profile)
    bandwidths = np.select([touched <= size for _, size, _ in levels], [rate for *_, rate in levels])
    return flops * product_s / products, touched / bandwidths


def _levels(profile: MachineProfile) -> list[tuple[str, float, float]]:
    """Known levels of memory, smallest first: name, bytes and bandwidth. The last, or else the slowest, holds all."""
    machine, roofs = profile.machine, profile.roofs
    if not roofs:
        raise Unsupported("the calibration has no memory bandwidth; calibrate again with: chipwise calibrate")
    sizes = {"private caches": machine.l2_bytes, "shared cache": machine.l3_bytes}
    found = [(name, float(size), roofs[name]) for name, size in sizes.items() if size is not None and name in roofs]
    last = "DRAM" if "DRAM" in roofs else min(roofs, key=lambda name: roofs[name])
    return [*found, (last, math.inf, roofs[last])]

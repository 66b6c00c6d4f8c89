"""Utilisation of the machine by a measured model: FLOPs and bytes of a pass relative to the calibrated peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chipwise.deploy.measure.measurement import Measurement
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.pricing import total_price, working_set_bytes


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
    prompt = [placed.op for placed in lower(design, measured.workload, Phase.PREFILL)]
    flops = float(sum(op.work().flops for op in prompt))
    steps = [placed.op for placed in lower(design, measured.workload, Phase.DECODE)]
    touched = float(working_set_bytes(total_price(steps, profile)))
    ceiling, bandwidth = _level(touched, profile)
    peak = _peak(design, prompt, profile)
    return Efficiency(
        mfu=flops / measured.percentile("ttft", 0.5) / peak if peak else None,
        mbu=touched / measured.percentile("tpot", 0.5) / bandwidth,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        ceiling=ceiling,
    )


def _peak(design: Design, prompt: Sequence[Op], profile: MachineProfile) -> float | None:
    """Peak FLOP/s for the design's weights; with mixed formats, each product counts at its own format's peak."""
    peaks = {name: profile.peaks[name] for name in design.formats.all if name in profile.peaks}
    if len(peaks) < len(design.formats.all):
        return None
    if len(peaks) == 1:
        return peaks[design.formats.head]
    products = [op for op in prompt if isinstance(op, Matmul)]
    seconds = sum(op.work().flops / peaks[op.weights] for op in products)
    return float(sum(op.work().flops for op in products) / seconds)


def _level(working_set: float, profile: MachineProfile) -> tuple[str, float]:
    """The smallest level of memory that holds the working set, with its bandwidth; else the slowest known level."""
    machine = profile.machine
    sizes = {"private caches": machine.l2_bytes, "shared cache": machine.l3_bytes}
    for name, size in sizes.items():
        if size is not None and working_set <= size and name in profile.roofs:
            return name, profile.roofs[name]
    known = dict(sorted(profile.roofs.items(), key=lambda item: item[1]))
    name = "DRAM" if "DRAM" in known else next(iter(known))
    return name, known[name]

"""The physics of one matrix product: tiles, waves, K steps, bytes, launch. Constants are free of any device's name.

A product is cut into output tiles; each streaming multiprocessor takes one at a time and walks along K in steps of 128
bytes. A step lasts as long as the slowest of multiplying, feeding operands from L2, and the latency of the loop. Too
few tiles are split along K. What the tiles need, and what the memory needs for the bytes, overlap as a p-norm; the
launch, and the kernel that quantises activations, come on top. The best of a few tile shapes is taken, as libraries do.

References:
    NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.kernels.gemm_formats import KernelPath
from chipwise.predict.kernels.times import LAUNCH_S, Array, launch_s

TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))  # rows of m, columns of n
STEP_BYTES = 128.0  # along K
CLOCK_HZ = 1.9e9  # constants in clocks are seconds at this clock
FLOPS_PER_CLOCK = 4096.0  # 16-bit, of the SM that feeding is stated for
UNITS = 16.0  # fallback where nobody publishes a unit count


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the physics asks of a device and a path."""

    units: float
    clock_hz: float
    bandwidth_bytes_per_s: float
    launch_ratio: float  # of an empty kernel to that of a GPU
    path: KernelPath

    @classmethod
    def of(cls, device: DeviceProfile, path: KernelPath) -> Machine:
        """From the data sheet; without a unit count 16 units, without a clock 1.9 GHz."""
        return cls(
            units=device.units.number if device.units is not None else UNITS,
            clock_hz=device.clock.number if device.clock is not None else CLOCK_HZ,
            bandwidth_bytes_per_s=device.mem_bandwidth_bytes_per_s,
            launch_ratio=launch_s(device) / LAUNCH_S["gpu"],
            path=path,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of one product and of what it is made of."""

    total_s: Array
    tiles_s: Array
    memory_s: Array
    quantise_s: Array
    launch_s: Array
    bytes: Array


SHARED: Mapping[str, tuple[float, float]] = {
    "compute_share": (np.log(0.85), 0.3),  # log of the share of the dense peak inside a step
    "memory_share": (np.log(0.85), 0.2),  # log of the share of the bandwidth
    "prologue": (np.log(2000.0), 1.0),  # log clocks that a tile costs besides its steps
    "step": (np.log(200.0), 1.0),  # log clocks that a step takes at least
    "feed": (np.log(64.0), 1.0),  # log bytes a clock into an SM of FLOPS_PER_CLOCK
    "feed_power": (0.7, 0.15),  # how feeding grows with the SM's FLOPs a clock
    "wave": (-1.0, 1.0),  # logit: how much a wave that is not full costs as a full one
    "reduce": (np.log(1500.0), 1.0),  # log clocks for each doubling of the split along K
    "overlap": (np.log(2.0), 0.5),  # log p of the norm
    "launch_clock": (0.5, 0.1),  # power of the clock in a launch, a step, a prologue
    "step_clock": (0.5, 0.15),
    "prologue_clock": (0.5, 0.15),
    "quantise_row": (np.log(300.0), 1.0),  # log clocks for 512 values of a row
    "quantise_bytes": (np.log(0.5), 1.0),  # log of bytes over bandwidth
}
"""Constants of all products: prior and its standard deviation."""

OWN: Mapping[str, tuple[float, float]] = {
    "launch": (np.log(3e-6), 1.0),  # log seconds
    "compute_share": (0.0, 0.1),
    "quantise_row": (0.0, 1.0),
    "quantise_bytes": (0.0, 1.0),
}
"""Constants of one stack and path: the launch, and what is added to the shared ones."""


def parts(m: Any, n: Any, k: Any, machine: Machine, shared: Mapping[str, float], own: Mapping[str, float]) -> Parts:
    """Seconds of an (m, k) by (k, n) product; sizes are float arrays of one shape.

    Args:
        m: Rows of the activations.
        n: Columns of the weights.
        k: What they share.
        machine: The device and path.
        shared: A value for each name of ``SHARED``.
        own: A value for each name of ``OWN``.
    """
    path, clock = machine.path, machine.clock_hz / CLOCK_HZ
    steps = np.ceil(k * (max(path.weight_bytes, path.activation_bytes) / STEP_BYTES))
    step_k = STEP_BYTES / max(path.weight_bytes, path.activation_bytes)
    share = np.exp(shared["compute_share"] + own["compute_share"])
    unit_flops_per_s = path.peak_flops_per_s * share / machine.units
    width = path.peak_flops_per_s * path.activation_bytes / 2 / machine.units / machine.clock_hz / FLOPS_PER_CLOCK
    feed_bytes_per_s = np.exp(shared["feed"]) * machine.clock_hz * width ** shared["feed_power"]
    step_s = np.exp(shared["step"]) / CLOCK_HZ * clock ** -shared["step_clock"]
    prologue_s = np.exp(shared["prologue"]) / CLOCK_HZ * clock ** -shared["prologue_clock"]
    reduce_s = np.exp(shared["reduce"]) / CLOCK_HZ * clock ** -shared["prologue_clock"]
    whole = 1 / (1 + np.exp(-shared["wave"]))
    most_split = np.maximum(1.0, steps / 4)
    best: Any = np.inf
    for rows, columns in TILES:
        tiles = np.ceil(m * (1 / rows)) * np.ceil(n * (1 / columns))
        split = np.clip(np.floor(machine.units / tiles), 1.0, most_split)
        waves = tiles * split / machine.units
        waves = np.maximum((1 - whole) * waves + whole * np.ceil(waves), 1.0)
        one_s = max(
            2 * rows * columns * step_k / unit_flops_per_s, (rows + columns) * STEP_BYTES / feed_bytes_per_s, step_s
        )
        best = np.minimum(best, waves * (prologue_s + steps / split * one_s) + reduce_s * np.log2(split))
    moved = m * k * path.activation_bytes + n * k * path.weight_bytes + m * n * path.output_bytes
    memory_s = moved / (machine.bandwidth_bytes_per_s * np.exp(shared["memory_share"]))
    launch = np.exp(own["launch"]) * machine.launch_ratio * clock ** -shared["launch_clock"]
    quantise_s = np.zeros_like(moved)
    if path.quantises:
        row_s = np.exp(shared["quantise_row"] + own["quantise_row"]) / (machine.clock_hz * machine.units)
        byte_s = np.exp(shared["quantise_bytes"] + own["quantise_bytes"]) / machine.bandwidth_bytes_per_s
        quantise_s = m * np.ceil(k / 512) * row_s + m * k * (path.source_bytes + path.activation_bytes) * byte_s
    power = np.exp(shared["overlap"])
    high, low = np.maximum(best, memory_s), np.minimum(best, memory_s)
    overlapped = high * (1 + (low / high) ** power) ** (1 / power)
    return Parts(
        total_s=launch + quantise_s + overlapped,
        tiles_s=best,
        memory_s=memory_s,
        quantise_s=quantise_s,
        launch_s=np.full_like(moved, launch),
        bytes=moved,
    )

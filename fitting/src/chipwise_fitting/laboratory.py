"""Kernel times in another benchmark suite: a factor and added seconds for each kind of kernel.

Laboratories lock clocks or do not, warm caches or not, and count a launch or leave it out, so that their tables differ
by almost a constant. ``chipwise validate layers`` compares in the other's terms.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import times_of
from chipwise.predict.whole_runs.sums import Amount, Constants, Law, load, named

DATA = Path(__file__).parent / "data" / "layers.json"
STACK = "vllm"  # whose kernels ours are


def timed_law(op: Op, device: DeviceProfile, sort: str) -> Law:
    """Seconds of ``op`` as the other laboratory times it, its sizes numbers or arrays.

    Raises:
        Unsupported: The device lacks a rate.
    """
    ours: Any = times_of(op, device, stack=STACK).latency_s
    return (
        Amount(ours, 0, named("factor", (sort, device.name, f"{device.name}|{sort}"))),
        Amount(1e-6, 1, named("own", (sort, device.name, f"{device.name}|{sort}"))),
    )


@functools.cache
def constants() -> Constants:
    """Returns the bundled constants."""
    return load(DATA)

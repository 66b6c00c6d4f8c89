"""Converts our kernel times to those of another laboratory: a factor and added seconds for each kind of kernel.

Laboratories differ in whether they lock clocks, warm caches and count a launch, so their times differ by almost
constant factors. ``chipwise validate layers`` therefore predicts times as the other laboratory measures them.
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
STACK = "vllm"  # the stack whose kernels are predicted


def timed_law(op: Op, device: DeviceProfile, sort: str) -> Law:
    """Returns the law for the time of ``op`` that the other laboratory measures; sizes are numbers or arrays.

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

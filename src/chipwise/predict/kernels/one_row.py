"""Products of one row, with a second row of padding if that is faster, as engines may run them.

The tables that kernels were fitted to hold vLLM 0.24's FP8 products on data-centre Blackwell (B200, B300, GB200,
GB300): one row takes 13 to 16 microseconds longer than two, at every size (256 x 256 too, 18.6 against 5.3 µs), so 2.2
times as long in the median. No such step is in the same kernels on Hopper or Ada, nor in SGLang's or TensorRT-LLM's on
the same chips: it is a choice of the library, not a limit of the chip, and padding the row avoids it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import times_of
from chipwise.predict.kernels.times import KernelTimes

SCATTER = 1.25  # one row over two: neighbouring rows of the tables differ by less


def served_times(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` by :func:`times_of`; one row takes at most the time of two rows.

    Raises:
        Unsupported: The device lacks a rate that the operator needs.
    """
    found = times_of(op, device, stack=stack, fold=fold)
    if not isinstance(op, Matmul) or not _narrow_floats(op):
        return found
    alone = np.broadcast_to(np.asarray(op.m) == 1, np.shape(found.latency_s))
    if not alone.any():
        return found
    padded = times_of(replace(op, m=np.maximum(op.m, 2)), device, stack=stack, fold=fold).latency_s
    slower = alone & (found.latency_s > SCATTER * padded)
    return replace(found, latency_s=np.where(slower, padded, found.latency_s)) if slower.any() else found


def _narrow_floats(op: Matmul) -> bool:
    """Whether activations may be narrowed to the weights' float format, in a separate kernel."""
    return op.weights.startswith(("fp8", "nvfp4", "mxfp4"))

"""Matrix products of one row, to which engines may add a second row of padding if that is faster.

In the tables used for the fit, vLLM 0.24's FP8 matrix products on data-centre Blackwell (B200, B300, GB200, GB300) take
13 to 16 microseconds longer for one row than for two, at every size (at 256 x 256: 18.6 against 5.3 µs). The median
ratio of the two times is 2.2. The same kernels on Hopper or Ada show no such difference, and neither do the kernels of
SGLang or TensorRT-LLM on the same chips. So the difference is a choice of the library, not a limit of the chip, and
padding the row avoids it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import times_of
from chipwise.predict.kernels.times import KernelTimes

NARROW = ("fp8", "nvfp4", "mxfp4")  # formats of weights for which a separate kernel may quantise activations
SCATTER = 1.25  # a row is padded if it takes more than this many times as long as two rows


def served_times(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` by :func:`times_of`, where a matrix product of one row with narrow weights may be padded.

    Raises:
        Unsupported: The device lacks a rate that the operator needs.
    """
    found = times_of(op, device, stack=stack, fold=fold)
    if not isinstance(op, Matmul) or not op.weights.startswith(NARROW):
        return found
    alone = np.broadcast_to(np.asarray(op.m) == 1, np.shape(found.latency_s))
    if not alone.any():
        return found
    padded = times_of(replace(op, m=np.maximum(op.m, 2)), device, stack=stack, fold=fold).latency_s
    slower = alone & (found.latency_s > SCATTER * padded)
    return replace(found, latency_s=np.where(slower, padded, found.latency_s)) if slower.any() else found

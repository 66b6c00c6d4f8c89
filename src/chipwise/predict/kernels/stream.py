"""Times of streaming operators, such as norms, elementwise functions, embeddings, routing and sampling.

With many bytes, a kernel reaches a share s of the data sheet's bandwidth B; with few bytes, latency dominates. For n
bytes, t = launch + ramp + n / (s·B), so half of s·B is reached at n = s·B · (launch + ramp). Recently written bytes in
the last-level cache move faster, which is not modelled here.
"""

from __future__ import annotations

import numpy as np

from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import analytic
from chipwise.predict.kernels.times import KernelTimes, launch_s, together

SHARE = 0.85  # share of the data sheet's bandwidth; streaming copies reach 0.85 to 0.92 on A100 and H100
RAMP_S = {"gpu": 1.0e-6, "cpu": 0.3e-6}  # to fill and drain the memory system: one DRAM latency each
RAMP_ELSEWHERE_S = 2.0e-6
PASSES = {"sample": 3.0}  # maximum, sum and choice each read the logits
LOG_HALFWIDTH = 0.7  # assumed, not fitted: these kernels were not timed


def times(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """The longer of the times for moving the bytes and for computing on the vector units, plus launch and ramp.

    Raises:
        Unsupported: The device has no rate for the vector arithmetic that the operator needs.
    """
    work = op.work()
    flops, moved = together(work.flops, work.bytes)
    memory = moved / device.mem_bandwidth_bytes_per_s
    compute = flops / vector_peak(device) if np.any(flops > 0) else np.zeros(flops.shape)
    launch = np.full(moved.shape, launch_s(device))
    ramp = RAMP_S.get(device.kind, RAMP_ELSEWHERE_S)
    streamed = memory * PASSES.get(op.kind, 1.0) / SHARE
    return KernelTimes(
        latency_s=launch + ramp + np.maximum(streamed, compute / analytic.COMPUTE_SHARE),
        log_halfwidth=np.full(moved.shape, LOG_HALFWIDTH),
        compute_s=compute,
        memory_s=memory,
        launch_s=launch,
        situation="unseen",
    )


def vector_peak(device: DeviceProfile) -> float:
    """FLOP/s of the vector units in the widest format on the data sheet.

    If the data sheet lists no vector units, it is the rate of other units.

    Raises:
        Unsupported: The device lists no arithmetic rate.
    """
    formats = ("fp32", "fp16", "bf16", "int8")
    if rate := device.rate(*formats, kind="vector") or device.rate(*formats):
        return rate
    raise Unsupported(f"{device.name} lists no arithmetic rate; pass a device file of your own that has one")

"""Times of unfused attention: a matrix product, a softmax and another product as separate kernels.

The scores are in memory, and each kernel reads what the kernel before it wrote. For N tokens and head width d, the
kernels move Θ(N·d + N²) values. The fused kernel moves Θ(N²·d²/M) values if fast memory holds M values.

References:
    Dao et al. 2022, FlashAttention, arXiv:2205.14135: algorithm 0 (this module), theorem 2 (both counts).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import dtype_of
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.attention import AttentionOp
from chipwise.predict.kernels import analytic
from chipwise.predict.kernels.attention_physics import Chip
from chipwise.predict.kernels.stream import vector_peak
from chipwise.predict.kernels.times import KernelTimes, launch_s

LOG_HALFWIDTH = 1.0  # assumed, not fitted: these kernels were not timed
SOFTMAX_FLOPS = 5  # per score: scale, compare, subtract, exponential, sum


def unfused_times(
    op: AttentionOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None
) -> KernelTimes:
    """Seconds of the three kernels together.

    Each kernel takes the longer of the times for computing and for moving its operands. Masked scores are computed too.
    ``stack`` and ``fold`` have no effect, because these kernels were not fitted.

    Raises:
        Unsupported: The device has no rate for the matrix products' format.
    """
    op = dataclasses.replace(op, fused=False)
    chip = Chip.of(device, op.activations)
    value = dtype_of(op.activations).size_bytes
    keys = np.asarray(op.past_tokens + (0 if op.cross else op.query_tokens), dtype=np.float64)
    rows = np.asarray(op.batch * op.query_tokens * op.heads, dtype=np.float64)
    scores = rows * keys
    vectors = value * rows * op.head_size  # queries or results
    cached = dtype_of(op.cache).size_bytes * np.asarray(op.batch * op.kv_heads * op.head_size, dtype=np.float64) * keys
    product_s = 2 * scores * op.head_size / chip.flops_per_s
    softmax_s = SOFTMAX_FLOPS * scores / vector_peak(device)
    launch = launch_s(device)
    stages: tuple[tuple[Float64Array, Float64Array], ...] = (
        (product_s, vectors + cached + value * scores),
        (softmax_s, 2 * value * scores),
        (product_s, value * scores + cached + vectors),
    )
    latency = sum(
        launch + np.maximum(compute / analytic.COMPUTE_SHARE, moved / (analytic.MEMORY_SHARE * chip.bandwidth))
        for compute, moved in stages
    )
    latency = np.asarray(latency, dtype=np.float64)
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, LOG_HALFWIDTH),
        compute_s=np.broadcast_to(2 * product_s, latency.shape),
        memory_s=np.broadcast_to(sum(moved for _, moved in stages) / chip.bandwidth, latency.shape),
        launch_s=np.full(latency.shape, 3 * launch),
        situation="unseen",
    )

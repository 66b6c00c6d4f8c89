"""Times of mixtures of experts that run in a loop: one expert after another, each with its own small matrix products.

Implementations without a grouped kernel work this way. For each expert with at least one row, kernels gather, multiply
and sum. These kernels were not timed, so each active expert is predicted as single matrix products plus launches. The
host's time for the loop is not included.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels import experts, gemm
from chipwise.predict.kernels.times import KernelTimes, launch_s

BESIDE = 5  # kernels per expert besides its matrix products: gather, activation, gating, router weights, sum
LOG_HALFWIDTH = 0.6  # assumed, not fitted


def times(op: ExpertsOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of all active experts of ``op``, which run one after another.

    Raises:
        Unsupported: The device has no rate for the matrix products' format.
    """
    numbers = experts.grouped(op, device, routing=experts.ROUTING)
    met, rows = numbers.load.met, numbers.load.rows / numbers.load.met
    into = gemm.times(_product(op, rows, op.d_model, op.width), device, stack=stack, fold=fold)
    out = gemm.times(_product(op, rows, op.width, op.d_model), device, stack=stack, fold=fold)
    launch, wide = launch_s(device), numbers.matrices - 1
    latency = met * (wide * into.latency_s + out.latency_s + BESIDE * launch)
    return KernelTimes(
        latency_s=latency,
        log_halfwidth=np.full(latency.shape, LOG_HALFWIDTH),
        compute_s=numbers.compute_s,
        memory_s=numbers.memory_s,
        launch_s=np.full(latency.shape, launch),  # a data-dependent loop cannot be captured in a graph
        situation=into.situation,
        doubt=np.full(latency.shape, LOG_HALFWIDTH),
    )


def _product(op: ExpertsOp, rows: Float64Array, k: Size, n: Size) -> Matmul:
    """The matrix product of one expert, with the mean number of rows."""
    return Matmul(m=np.maximum(rows, 1.0), k=k, n=n, weights=op.weights, activations=op.activations)

"""Mixtures of experts as a loop: one expert after another, each with small products of its own.

So do implementations without a grouped kernel. An expert that has a row is gathered, multiplied, and summed up by
kernels of its own; nothing of this kind was timed, so it is the model of single products, as often as experts are met,
and launches. What the host spends on the loop comes on top and is not known here.
"""

from __future__ import annotations

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import ExpertsOp, Matmul
from chipwise.predict.kernels import experts, gemm
from chipwise.predict.kernels.times import KernelTimes, launch_s

BESIDE = 5  # kernels of an expert beside its products: gather, activation, gating, weights of the router, summing up
LOG_HALFWIDTH = 0.6  # stated


def times(op: ExpertsOp, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of all experts of ``op`` that have a row, one after another.

    Raises:
        Unsupported: The device has no rate for the products' format.
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
        launch_s=np.full(latency.shape, launch),  # a loop that depends on the router is captured in no graph
        situation=into.situation,
        doubt=np.full(latency.shape, LOG_HALFWIDTH),
    )


def _product(op: ExpertsOp, rows: Float64Array, k: Size, n: Size) -> Matmul:
    """One expert's product with the rows that it has on average."""
    return Matmul(m=np.maximum(rows, 1.0), k=k, n=n, weights=op.weights, activations=op.activations)

"""Predicts the times of kernels on devices. Each kind of operator has a module with a formula and fitted corrections.

``MODELS`` lists these modules; an operator that is not listed there is predicted by its roofline (``analytic``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES
from chipwise.model.ops.op import Op
from chipwise.predict.kernels import cores, local
from chipwise.predict.kernels.times import KernelTimes

__all__ = ["MODELS", "KernelTimes", "times_of"]

MODELS: dict[str, str] = {
    "AttentionOp": "attention",
    "CollectiveOp": "collective",
    "ConvOp": "scan",
    "Elementwise": "stream",
    "EmbeddingOp": "stream",
    "ExpertsOp": "experts",  # or ``looped``, if each expert has separate kernels
    "GroupedMatmul": "experts",
    "LatentAttentionOp": "latent",
    "Matmul": "gemm",
    "NormOp": "stream",
    "PoolOp": "stream",
    "RouteOp": "stream",
    "SampleOp": "stream",
    "ScanOp": "scan",
}
"""The module of this package that predicts an operator, by the name of the operator's class."""


def times_of(op: Op, device: DeviceProfile, *, stack: str = "vllm", fold: str | None = None) -> KernelTimes:
    """Seconds of ``op`` on ``device``, but never less than its FLOPs divided by the dense peak.

    Args:
        op: The operator; its sizes may be arrays.
        device: Any data sheet.
        stack: The stack whose kernels run: ``vllm``, ``sglang``, ``trtllm``, ``cores``, or one of ``local.STACKS``.
        fold: None for the bundled fit; ``device:NAME`` or ``family:NAME`` for a fit without the data of that device
            or family.

    Raises:
        Unsupported: The device lacks a rate that the operator needs.
    """
    kind = type(op).__name__
    if stack == CORES and kind != "CollectiveOp":
        found = cores.times(op, device, stack=stack)
    elif stack in local.STACKS and kind != "CollectiveOp":
        found = local.times(op, device, stack=stack)
    else:
        name = "looped" if op.kind == "looped_experts" else MODELS.get(kind, "analytic")
        module = importlib.import_module(f"chipwise.predict.kernels.{name}")
        model: Callable[..., KernelTimes] = module.times
        found = model(op, device, stack=stack, fold=fold)
    return replace(found, latency_s=np.maximum(found.latency_s, found.compute_s))

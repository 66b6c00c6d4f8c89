"""A data sheet as the pricer of a space: seconds of every operator from the kernel models, bytes by counting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chipwise.blocks.lowering import lower
from chipwise.core.dtypes import DType
from chipwise.core.errors import Unsupported
from chipwise.cost.memory import block_activation_bytes, memory_parts
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import Op, Phase, Workload
from chipwise.predict.kernels import times_of
from chipwise.space.pricing import PriceTable
from chipwise.space.space import Rows
from chipwise.spec import Attention, Design, FeedForward

Floats = NDArray[np.float64]
ACTIVATIONS = ("bf16", "fp16", "fp32")  # the first that the device multiplies


class DevicePricer:
    """Prices of operators on a device that is known by its data sheet; see :class:`chipwise.space.pricing.Pricer`.

    Operators run one after the other, in ``activations``; weights stay in the format that the space chose. Memory is
    that of the model alone: what a serving process takes besides is not known of a data sheet.

    Args:
        device: The data sheet.
        activations: Number format of activations and cache; the first of ACTIVATIONS that the device has, unless given.
        stack: Whose kernels run.

    Raises:
        Unsupported: The device lists no rate for any of ACTIVATIONS.
    """

    def __init__(self, device: DeviceProfile, *, activations: str | None = None, stack: str = "vllm") -> None:
        self.device, self.stack = device, stack
        self.activations = activations or _activations(device)
        self._share = DType.named(self.activations).size_bytes / DType.FP32.size_bytes

    def op_columns(self, op: Op) -> Floats:
        """Seconds, launch included: the one column, (1,)."""
        names = {field.name for field in dataclasses.fields(op)}  # type: ignore[arg-type]
        changes: dict[str, str] = {name: self.activations for name in ("activations", "cache") if name in names}
        if op.kind == "embedding" and getattr(op, "weights", "") == "fp32":
            changes["weights"] = self.activations
        priced = dataclasses.replace(op, **changes)  # type: ignore[type-var]
        return np.array([float(times_of(priced, self.device, stack=self.stack).latency_s)])

    def latency_s(self, columns: Floats, phase: Phase, *, logits: Floats) -> Floats:
        """The sum of the operators, (n, 1) -> (n,)."""
        return columns[:, 0]

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Matrices as they are stored; tables, norms and cache in the format of activations."""
        parts = memory_parts(design, workload)
        return parts.matrix_bytes + self._share * (parts.table_bytes + parts.kv_bytes)

    def activation_bytes(self, block: Attention | FeedForward, d_model: int, workload: Workload) -> float:
        """What a block's own tensors take at once."""
        return self._share * block_activation_bytes(block, d_model, workload)

    def base_bytes(self) -> float:
        """Nothing: memory is that of the model alone."""
        return 0.0


def _activations(device: DeviceProfile) -> str:
    for name in ACTIVATIONS:
        try:
            device.peak(name)
        except Unsupported:
            continue
        return name
    device.peak(ACTIVATIONS[0])  # raises with what the device lists
    raise Unsupported(f"{device.name} lists no rate for {', '.join(ACTIVATIONS)}")


def device_metrics(table: PriceTable) -> Callable[[Rows], dict[str, Floats]]:
    """What a data sheet's price table tells of rows: medians, memory, parameters. Tails are measured, never priced."""

    def metrics(rows: Rows) -> dict[str, Floats]:
        costs = table(rows)
        return {
            "ttft_p50": costs.ttft_s,
            "tpot_p50": costs.tpot_s,
            "peak_memory": costs.peak_memory_bytes,
            "parameters": costs.parameters,
        }

    return metrics


def design_costs(design: Design, workload: Workload, pricer: DevicePricer) -> dict[str, float]:
    """What one design costs on a data sheet's device, inside a space or not: medians and memory."""
    found = {}
    for metric, phase in (("ttft_p50", Phase.PREFILL), ("tpot_p50", Phase.DECODE)):
        found[metric] = sum(float(pricer.op_columns(placed.op)[0]) for placed in lower(design, workload, phase))
    widest = max(
        pricer.activation_bytes(block, design.arch.d_model, workload)
        for layer in design.arch.layers
        for block in (layer.attention, layer.ffn)
        if isinstance(block, Attention | FeedForward)
    )
    return {**found, "peak_memory": pricer.stored_bytes(design, workload) + widest}

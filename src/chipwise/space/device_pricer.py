"""Prices a space by a data sheet: seconds and joules of operators by the kernel models, bytes by counting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import DType
from chipwise.core.errors import Unsupported
from chipwise.cost.memory import block_activation_bytes, memory_parts
from chipwise.cost.spending import rates_of, spent
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.ops import Op, Phase, Workload
from chipwise.predict.kernels import times_of
from chipwise.predict.power import power
from chipwise.space import SearchSpace
from chipwise.space.price_table import OperatorPricer, PriceTable
from chipwise.space.search_space import Rows
from chipwise.spec import Attention, Design, FeedForward

T = TypeVar("T")
ACTIVATIONS = ("bf16", "fp16", "fp32")  # the first that the device multiplies


class DevicePricer(OperatorPricer):
    """Prices operators on a device with a data sheet; see :class:`chipwise.space.price_table.Pricer`.

    Operators run one after the other, in ``activations``; weights have the format that the space chose. Memory is that
    of the model alone, since a data sheet does not state that of a serving process.

    Args:
        device: The data sheet.
        activations: Number format of activations and cache; the first of ACTIVATIONS that the device has, unless given.
        stack: Whose kernels run.
        joules: Whether energy is priced too, which needs the board's power and a rate for every format.

    Raises:
        Unsupported: The device lists no rate for any of ACTIVATIONS.
    """

    def __init__(
        self, device: DeviceProfile, *, activations: str | None = None, stack: str = "vllm", joules: bool = False
    ) -> None:
        super().__init__()
        self.device, self.stack, self.joules = device, stack, joules
        self.activations = activations or _activations(device)
        self._share = DType.named(self.activations).size_bytes / DType.FP32.size_bytes

    def op_columns(self, op: Op) -> Float64Array:
        """Seconds, launch included, and joules where they are priced: (1,) or (2,).

        Raises:
            Unsupported: The device lacks a rate that the operator needs, or joules are priced and it lists no power.
        """
        names = {field.name for field in dataclasses.fields(op)}  # type: ignore[arg-type]
        changes: dict[str, str] = {name: self.activations for name in ("activations", "cache") if name in names}
        if op.kind == "embedding" and getattr(op, "weights", "") == "fp32":
            changes["weights"] = self.activations
        priced = dataclasses.replace(op, **changes)  # type: ignore[type-var]
        latency_s = float(times_of(priced, self.device, stack=self.stack).latency_s)
        if not self.joules:
            return np.array([latency_s])
        return np.array([latency_s, float(power(priced, self.device, latency_s).energy_j)])

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """The sums of the operators, (n, columns) -> (n,) each."""
        return prefill[:, 0], decode[:, 0]

    def energy_j(self, columns: Float64Array) -> Float64Array | None:
        """The sum of the operators, likewise; None where joules are not priced."""
        return columns[:, 1] if self.joules else None

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Bytes of matrices as stored, and of tables, norms and cache in the format of activations."""
        parts = memory_parts(design, workload)
        return parts.matrix_bytes + self._share * (parts.table_bytes + parts.kv_bytes)

    def activation_bytes(self, block: Attention | FeedForward, d_model: int, workload: Workload) -> float:
        """Bytes of a block's tensors that exist at once."""
        return self._share * block_activation_bytes(block, d_model, workload)

    def base_bytes(self) -> float:
        """0, since memory is that of the model alone."""
        return 0.0


def as_priced(sheet: DeviceProfile, use: Callable[[DevicePricer], T]) -> T:
    """Calls ``use`` with a pricer of joules, or one without where the device lacks a fact."""
    try:
        return use(DevicePricer(sheet, joules=True))
    except Unsupported:
        return use(DevicePricer(sheet))


def _activations(device: DeviceProfile) -> str:
    for name in ACTIVATIONS:
        try:
            device.peak(name)
        except Unsupported:
            continue
        return name
    device.peak(ACTIVATIONS[0])  # raises with what the device lists
    raise Unsupported(f"{device.name} lists no rate for {', '.join(ACTIVATIONS)}")


def device_metrics(
    space: SearchSpace, workload: Workload, pricer: DevicePricer
) -> Callable[[Rows], dict[str, Float64Array]]:
    """Metrics of rows by a data sheet: medians, memory, parameters; power, energy and price where it has the facts.

    Tails are measured, never priced.
    """
    table, rates = PriceTable(space, workload, pricer), rates_of(pricer.device)

    def metrics(rows: Rows) -> dict[str, Float64Array]:
        costs = table(rows)
        return {
            "ttft_p50": costs.ttft_s,
            "tpot_p50": costs.tpot_s,
            "peak_memory": costs.peak_memory_bytes,
            "parameters": costs.parameters,
            **spent(costs.ttft_s, costs.tpot_s, workload, rates, prefill_j=costs.prefill_j, decode_j=costs.decode_j),
        }

    return metrics


def design_costs(design: Design, workload: Workload, pricer: DevicePricer) -> dict[str, float]:
    """Metrics of one design, in a space or not, as :func:`device_metrics` gives them for rows."""
    passes = [
        np.sum([pricer.op_columns(placed.op) for placed in lower(design, workload, phase)], axis=0)[None]
        for phase in (Phase.PREFILL, Phase.DECODE)
    ]
    (ttft_s, tpot_s), (prefill_j, decode_j) = ([p[:, 0] for p in passes], [pricer.energy_j(p) for p in passes])
    rates = rates_of(pricer.device)
    costs = spent(ttft_s, tpot_s, workload, rates, prefill_j=prefill_j, decode_j=decode_j)
    found = {name: float(values[0]) for name, values in {"ttft_p50": ttft_s, "tpot_p50": tpot_s, **costs}.items()}
    widest = max(
        pricer.activation_bytes(block, design.arch.d_model, workload)
        for layer in design.arch.layers
        for block in (layer.attention, layer.ffn)
        if isinstance(block, Attention | FeedForward)
    )
    memory = pricer.stored_bytes(design, workload) + widest
    return {**found, "peak_memory": memory, "parameters": float(design.arch.parameters())}

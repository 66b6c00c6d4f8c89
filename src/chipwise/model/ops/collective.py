"""Collectives: bytes between devices, at the minimum that any algorithm needs.

References:
    Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH.
    NVIDIA nccl-tests, PERFORMANCE.md: the bus-bandwidth factors are the shares below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core.dtypes import Size, dtype_of
from chipwise.model.ops.work import Work

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """One collective among ``devices``.

    ``payload_bytes`` is what each device holds in full: the vector that is reduced, the result that is gathered, the
    vector that is reduced and scattered, the buffer that is dealt out to all, the message that is sent.
    """

    collective: Collective
    payload_bytes: Size
    devices: Size
    activations: str = "bf16"

    @property
    def kind(self) -> str:
        """The collective's name."""
        return self.collective

    def work(self) -> Work:
        """Bytes that each device sends, and sums that it computes, at the least.

        With p devices: (p - 1)/p of the payload for gathering, scattering and dealing out, twice that for reducing on
        all, the whole payload from point to point.
        """
        share = (self.devices - 1) / self.devices
        sent = {"p2p": 1, "all_reduce": 2 * share}.get(self.collective, share) * self.payload_bytes
        summed = share * self.payload_bytes if "reduce" in self.collective else 0
        return Work(
            flops=summed / dtype_of(self.activations).size_bytes,
            read_bytes=self.payload_bytes,
            write_bytes=self.payload_bytes,
            link_bytes=sent,
        )

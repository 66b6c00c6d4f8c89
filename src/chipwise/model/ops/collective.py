"""Collectives: the least number of bytes that any algorithm must move between devices.

References:
    Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH.
    NVIDIA nccl-tests, PERFORMANCE.md: its bus-bandwidth factors are the fractions in :meth:`CollectiveOp.work`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core.dtypes import Size, dtype_of
from chipwise.model.ops.work import Work

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveOp:
    """One collective operation among ``devices``.

    ``payload_bytes`` is the size of the full buffer on one device: the vector of an all-reduce or reduce-scatter, the
    result of an all-gather, the send buffer of an all-to-all, or the message of p2p.
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
        """The least work of each device: the bytes that it sends, and the additions that it computes.

        With p devices, each sends (p - 1)/p of the payload for all-gather, reduce-scatter and all-to-all, twice that
        for all-reduce, and the whole payload for p2p.
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

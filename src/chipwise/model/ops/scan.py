"""Recurrences over tokens, with a state of fixed size: Mamba-2 and the gated delta rule.

References:
    Dao and Gu 2024, Transformers are SSMs (Mamba-2), arXiv:2405.21060: the chunked form in section 6.
    Yang et al. 2024, Gated Delta Networks, arXiv:2412.06464; the chunked (WY) form as in arXiv:2406.06484, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core.dtypes import Size, values_bytes
from chipwise.model.ops.op import choose, chunk_triangles, lesser
from chipwise.model.ops.work import Work

ScanVariant = Literal["mamba2", "gated_delta"]
CHUNKS: dict[ScanVariant, int] = {"mamba2": 256, "gated_delta": 64}  # positions per chunk in published kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOp:
    """``query_tokens`` steps of a recurrence with a (key_size, value_size) state for each of ``heads`` heads.

    For Mamba-2, ``key_size`` is the state size and ``value_size`` the head size. Heads form ``groups`` groups that
    share B and C (keys and queries in gated delta). A single token is one step of the recurrence; several tokens are
    computed in chunks, by matrix products. The state is read and written once, in ``state`` format.
    """

    variant: ScanVariant
    batch: Size
    query_tokens: Size
    heads: Size
    key_size: Size
    value_size: Size
    groups: Size = 1
    activations: str = "fp32"
    state: str = "fp32"

    @property
    def kind(self) -> str:
        """The name of the variant in tables and reports."""
        return self.variant

    @property
    def state_values(self) -> Size:
        """Number of values in all sequences' states."""
        return self.batch * self.heads * self.key_size * self.value_size

    @property
    def state_bytes(self) -> Size:
        """Size of all sequences' states in bytes."""
        return values_bytes(self.state_values, self.state)

    def work(self) -> Work:
        """FLOPs of the recurrent form (one token) or the chunked form. Activations and state are read and written."""
        rows = self.batch * self.query_tokens
        by_step = rows * self.heads * self._step_flops()
        flops = choose(self.query_tokens == 1, by_step, self._chunked_flops())
        gates = 1 if self.variant == "mamba2" else 2  # per head: dt in Mamba-2; decay and write strength in gated delta
        into = rows * (self.heads * (self.value_size + gates) + 2 * self.groups * self.key_size)
        return Work(
            flops=flops,
            read_bytes=values_bytes(into, self.activations) + self.state_bytes,
            write_bytes=values_bytes(rows * self.heads * self.value_size, self.activations) + self.state_bytes,
        )

    def _step_flops(self) -> Size:
        """FLOPs per head and token. Per value of the state: 1 for decay, 2 for an outer product, 2 for the read-out.

        Mamba-2 also scales its input by dt and adds D·x (3 per value of the head). Gated delta first reads the state's
        value for the key (2 per value of the state) and writes the scaled difference (2 per value of the head).
        """
        state = self.key_size * self.value_size
        return 5 * state + 3 * self.value_size if self.variant == "mamba2" else 7 * state + 2 * self.value_size

    def _chunked_flops(self) -> Size:
        length = CHUNKS[self.variant]
        pairs = self.batch * chunk_triangles(self.query_tokens, length)
        rows = self.batch * self.query_tokens
        state = self.key_size * self.value_size
        if self.variant == "mamba2":
            # Per pair: C·B (a group), its decay (2) and product with x (a head). Per token: write and read the state.
            inside = pairs * (2 * self.groups * self.key_size + self.heads * (2 + 2 * self.value_size))
            return inside + rows * self.heads * (4 * state + 3 * self.value_size)
        # Per pair: keys with keys, their inverse (twice a third of the length), W and U from it, queries with keys, the
        # result. Per token: the state is read by W and by the query, and written.
        wide = lesser(self.query_tokens, length)
        inside = pairs * self.heads * (6 * self.key_size + 4 * self.value_size + 2 * wide // 3)
        return inside + rows * self.heads * (6 * state + 2 * self.value_size)

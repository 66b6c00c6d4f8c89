"""Recurrences over tokens with a state of fixed size: Mamba-2's state space and the gated delta rule.

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
CHUNKS: dict[ScanVariant, int] = {"mamba2": 256, "gated_delta": 64}  # positions a chunk, as published kernels have it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOp:
    """``query_tokens`` steps of a recurrence on a (key_size, value_size) state for each of ``heads`` heads.

    Mamba-2's state size is ``key_size`` here and its head size ``value_size``; its B and C (the keys and queries of
    gated delta) are shared by the heads of each of ``groups`` groups. One token is a step of the recurrence; more are
    computed in chunks, by products. The state is read and written once in ``state`` format.
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
        """The variant's name."""
        return self.variant

    @property
    def state_values(self) -> Size:
        """Values of all sequences' states."""
        return self.batch * self.heads * self.key_size * self.value_size

    @property
    def state_bytes(self) -> Size:
        """Bytes of all sequences' states."""
        return values_bytes(self.state_values, self.state)

    def work(self) -> Work:
        """FLOPs of the form that the number of tokens asks for; activations in and out, the state in and out."""
        rows = self.batch * self.query_tokens
        by_step = rows * self.heads * self._step_flops()
        flops = choose(self.query_tokens == 1, by_step, self._chunked_flops())
        gates = 1 if self.variant == "mamba2" else 2  # dt; decay and write strength
        into = rows * (self.heads * (self.value_size + gates) + 2 * self.groups * self.key_size)
        return Work(
            flops=flops,
            read_bytes=values_bytes(into, self.activations) + self.state_bytes,
            write_bytes=values_bytes(rows * self.heads * self.value_size, self.activations) + self.state_bytes,
        )

    def _step_flops(self) -> Size:
        """One head, one token. Both decay the state (1 a value), add an outer product (2) and read it out (2).

        Mamba-2 scales its input by dt and adds D·x (3 a value of the head); gated delta first reads what the state
        holds for the key (2 a value of the state), and writes the scaled difference (2 a value of the head).
        """
        state = self.key_size * self.value_size
        return 5 * state + 3 * self.value_size if self.variant == "mamba2" else 7 * state + 2 * self.value_size

    def _chunked_flops(self) -> Size:
        length = CHUNKS[self.variant]
        pairs = self.batch * chunk_triangles(self.query_tokens, length)
        rows = self.batch * self.query_tokens
        state = self.key_size * self.value_size
        if self.variant == "mamba2":
            # C·B a group and pair; its decay (2) and product with x a head and pair; into and out of the state a token.
            inside = pairs * (2 * self.groups * self.key_size + self.heads * (2 + 2 * self.value_size))
            return inside + rows * self.heads * (4 * state + 3 * self.value_size)
        # A pair: keys with keys, their inverse (a third of the length, twice), W and U from it, queries with keys, the
        # result. A token: the state read by W and by the query, and written.
        wide = lesser(self.query_tokens, length)
        inside = pairs * self.heads * (6 * self.key_size + 4 * self.value_size + 2 * wide // 3)
        return inside + rows * self.heads * (6 * state + 2 * self.value_size)

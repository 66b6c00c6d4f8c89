"""Prices of a whole space: each distinct block once, then a candidate is a gather and a sum.

A space is discrete, so its blocks repeat. Every distinct block is lowered to operators and priced once with the plain
scalar code; the prices are kept in arrays; a million candidates cost a few array operations. Prices are columns that
add (seconds that do not depend on the rest of the model, bytes that stream through the caches, …), and a last function
of the summed columns gives the latency, so effects of the whole working set are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chipwise.blocks.lowering import lower
from chipwise.ops import Op, Phase, Workload
from chipwise.space.space import FFN_KINDS, Rows, SearchSpace
from chipwise.spec import ArchSpec, Attention, Design, FeedForward, Layer

Floats = NDArray[np.float64]


class Pricer(Protocol):
    """A cost model that prices operators one by one and models by their sums."""

    def op_columns(self, op: Op) -> Floats:
        """The additive columns of one operator, (columns,)."""
        ...

    def memory_columns(self, design: Design, workload: Workload) -> Floats:
        """The additive columns of what a design keeps in memory, (columns,); layers add, whatever their order."""
        ...

    def latency_s(self, columns: Floats, phase: Phase) -> Floats:
        """Median seconds of passes whose operators' columns sum to ``columns``, (n, columns) -> (n,)."""
        ...

    def peak_memory_bytes(self, columns: Floats) -> Floats:
        """Bytes of a serving process from summed memory columns, (n, columns) -> (n,)."""
        ...


@dataclass(frozen=True)
class Costs:
    """What the cost model says of n candidates; every field is (n,)."""

    ttft_s: Floats
    tpot_s: Floats
    peak_memory_bytes: Floats
    parameters: Floats

    def __getitem__(self, index: NDArray[np.bool_] | NDArray[np.int64]) -> Costs:
        return Costs(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


class PriceTable:
    """Prices of all blocks of ``space`` for one workload; ``table(rows)`` prices candidates.

    A block's price is the difference it makes to a small model, so whatever lowering does (a fused residual, prefill
    that leaves all but the last position after the last attention) is in it; the last layer has prices of its own.
    One array holds the columns of both phases, of memory, and the parameters.
    """

    def __init__(self, space: SearchSpace, workload: Workload, pricer: Pricer) -> None:
        self.space, self._workload, self._pricer = space, workload, pricer
        self._known: dict[Op, Floats] = {}
        spec = space.spec
        pairs, kinds, widths = spec.attention_choices(), spec.layer.ffn, spec.layer.ffn_width
        self._first = (spec.head_size[0], pairs[0])
        self._ends = _filled((spec.d_model, spec.vocab_size, spec.tie_embeddings, spec.weights), self._end)
        attention = (spec.d_model, spec.head_size, spec.weights, pairs)
        self._attention, self._last_attention = _filled(attention, self._attend), _filled(attention, self._attend_last)
        ffn = (spec.d_model, spec.weights, kinds, widths)
        self._ffn, self._last_ffn = _filled(ffn, self._feed), _filled(ffn, self._feed_last)
        ops = len(self._op_columns(self._design(spec.d_model[0], spec.weights[0], [self._layer()]), Phase.DECODE))
        self._prefill, self._decode = slice(0, ops), slice(ops, 2 * ops)
        self._memory, self._parameters = slice(2 * ops, -1), -1
        self._shared = _filled((spec.d_model, spec.head_size, spec.weights, pairs), self._cache)

    def __call__(self, rows: Rows) -> Costs:
        """Costs of canonical rows, (n, genes)."""
        sums = self._sums(rows)
        return Costs(
            ttft_s=self._pricer.latency_s(sums[:, self._prefill], Phase.PREFILL),
            tpot_s=self._pricer.latency_s(sums[:, self._decode], Phase.DECODE),
            peak_memory_bytes=self._pricer.peak_memory_bytes(sums[:, self._memory]),
            parameters=sums[:, self._parameters],
        )

    def _sums(self, rows: Rows) -> Floats:
        space, index = self.space, self.space.index
        d, vocab, size = rows[:, index["d_model"]], rows[:, index["vocab_size"]], rows[:, index["head_size"]]
        tied, weights = rows[:, index["tie_embeddings"]], rows[:, index["weights"]]
        depth = space.values(rows, "depth")
        paired = space.values(rows, "sharing") == "pairs"
        layers = space.layer_rows(rows)
        total = self._ends[d, vocab, tied, weights].copy()
        for i in range(layers.shape[1]):
            pair, kind, width = layers[:, i].T
            for place, attention, ffn in (
                (i < depth - 1, self._attention, self._ffn),
                (i == depth - 1, self._last_attention, self._last_ffn),
            ):
                here = np.flatnonzero(place)
                if not len(here):
                    continue
                block = attention[d[here], size[here], weights[here], pair[here]]
                block = block + ffn[d[here], weights[here], kind[here], width[here]]
                without = paired[here]  # a layer that shares holds a cache of its own, and no weights
                if i % 2 and without.any():
                    cache = self._shared[d[here], size[here], weights[here], pair[here]]
                    if attention is self._last_attention:
                        cache = cache - self._attention[d[here], 0, weights[here], 0]  # the bare layer in the ends
                    start = self._memory.start
                    block[without, start:] = cache[without, start:]
                total[here] += block
        return total

    def _layer(
        self, pair: tuple[int, int] | None = None, head_size: int | None = None, ffn: FeedForward | None = None
    ) -> Layer:
        heads, kv_heads = pair or self._first[1]
        return Layer(
            attention=Attention(heads=heads, kv_heads=kv_heads, head_size=head_size or self._first[0]), ffn=ffn
        )

    def _design(
        self, d_model: int, weights: str, layers: list[Layer], vocab_size: int = 256, tied: bool = True
    ) -> Design:
        spec = self.space.spec
        arch = ArchSpec(
            vocab_size=vocab_size,
            d_model=d_model,
            layers=tuple(layers),
            max_tokens=spec.max_tokens,
            tie_embeddings=tied,
            norm=spec.norm,
        )
        return Design(arch=arch, weights=weights)

    def _op_columns(self, design: Design, phase: Phase) -> Floats:
        total: Floats | float = 0.0
        for placed in lower(design, self._workload, phase):
            if placed.op not in self._known:
                self._known[placed.op] = self._pricer.op_columns(placed.op)
            total = total + self._known[placed.op]
        return np.asarray(total)

    def _columns(self, d_model: int, weights: str, *layers: Layer, vocab_size: int = 256, tied: bool = True) -> Floats:
        design = self._design(d_model, weights, list(layers), vocab_size, tied)
        return np.concatenate(
            [
                self._op_columns(design, Phase.PREFILL),
                self._op_columns(design, Phase.DECODE),
                self._pricer.memory_columns(design, self._workload),
                [design.arch.parameters()],
            ]
        )

    def _end(self, d_model: int, vocab_size: int, tied: bool, weights: str) -> Floats:
        """A model of one bare layer; the other prices are differences to it."""
        return self._columns(d_model, weights, self._layer(), vocab_size=vocab_size, tied=tied)

    def _attend(self, d_model: int, head_size: int, weights: str, pair: tuple[int, int]) -> Floats:
        bare = self._layer()
        return self._columns(d_model, weights, self._layer(pair, head_size), bare) - self._columns(
            d_model, weights, bare
        )

    def _attend_last(self, d_model: int, head_size: int, weights: str, pair: tuple[int, int]) -> Floats:
        return self._columns(d_model, weights, self._layer(pair, head_size)) - self._columns(
            d_model, weights, self._layer()
        )

    def _feed(self, d_model: int, weights: str, kind: str, width: int) -> Floats:
        bare = self._layer()
        return self._columns(d_model, weights, self._layer(ffn=_ffn(kind, width)), bare) - self._columns(
            d_model, weights, bare, bare
        )

    def _feed_last(self, d_model: int, weights: str, kind: str, width: int) -> Floats:
        return self._columns(d_model, weights, self._layer(ffn=_ffn(kind, width))) - self._columns(
            d_model, weights, self._layer()
        )

    def _cache(self, d_model: int, head_size: int, weights: str, pair: tuple[int, int]) -> Floats:
        """What one more layer adds that uses another's weights."""
        own = self._layer(pair, head_size)
        sharer = Layer(attention=own.attention, ffn=None, shares=0)
        return self._columns(d_model, weights, own, sharer) - self._columns(d_model, weights, own)


def _ffn(kind: str, width: int) -> FeedForward:
    activation, gated = FFN_KINDS[kind]
    return FeedForward(width=width, activation=activation, gated=gated)


def _filled(axes: tuple[tuple[object, ...], ...], price: Callable[..., Floats]) -> Floats:
    """An array over ``axes`` whose last axis holds the columns of ``price(*values)``."""
    cells = [price(*values) for values in itertools.product(*axes)]
    return np.array(cells).reshape(*(len(axis) for axis in axes), -1)

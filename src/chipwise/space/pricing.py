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

    Indexed by global genes and block genes: attention (d_model, head_size, weights, pair), FFN (d_model, weights, kind,
    width), ends (d_model, vocabulary, tied, weights). One array holds the columns of both phases, of memory that every
    running layer takes (its cache) or only a layer with weights of its own, and the parameters.
    """

    def __init__(self, space: SearchSpace, workload: Workload, pricer: Pricer) -> None:
        self.space, self._workload, self._pricer = space, workload, pricer
        spec = space.spec
        axes = (spec.d_model, spec.head_size, spec.weights, spec.attention_choices())
        self._attention = _filled(
            axes,
            lambda d, size, weights, pair: self._block(
                d, weights, Layer(attention=Attention(heads=pair[0], kv_heads=pair[1], head_size=size), ffn=None)
            ),
        )
        self._ffn = _filled(
            (spec.d_model, spec.weights, spec.layer.ffn, spec.layer.ffn_width),
            lambda d, weights, kind, width: self._block(
                d,
                weights,
                Layer(
                    attention=None,
                    ffn=FeedForward(width=width, activation=FFN_KINDS[kind][0], gated=FFN_KINDS[kind][1]),
                ),
            ),
        )
        self._ends = _filled(
            (spec.d_model, spec.vocab_size, spec.tie_embeddings, spec.weights),
            lambda d, vocab, tied, weights: self._end(d, vocab, tied, weights),
        )
        self._cache = _filled((spec.head_size, spec.attention_choices()), self._shared)
        probe = self._arch(spec.d_model[0], (Layer(attention=None, ffn=FeedForward(width=1)),))
        ops = len(self._op_columns(Design(arch=probe), Phase.DECODE))
        memory = len(pricer.memory_columns(Design(arch=probe), workload))
        self._prefill, self._decode = slice(0, ops), slice(ops, 2 * ops)
        self._memory, self._parameters = slice(2 * ops, 2 * ops + memory), 2 * ops + memory

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
            runs = i < depth
            if not runs.any():
                break
            pair, kind, width = layers[:, i].T
            block = self._attention[d, size, weights, pair] + self._ffn[d, weights, kind, width]
            if i % 2 and paired.any():  # weights of its own are what a sharing layer does not have
                block[paired, self._memory.start :] = self._cache[size, pair][paired][:, self._memory.start :]
            total += np.where(runs[:, None], block, 0.0)
        return total

    def _arch(self, d_model: int, layers: tuple[Layer, ...], vocab_size: int = 256, tied: bool = True) -> ArchSpec:
        spec = self.space.spec
        return ArchSpec(
            vocab_size=vocab_size,
            d_model=d_model,
            layers=layers,
            max_tokens=spec.max_tokens,
            tie_embeddings=tied,
            norm=spec.norm,
        )

    def _op_columns(self, design: Design, phase: Phase) -> Floats:
        return np.sum([self._pricer.op_columns(item.op) for item in lower(design, self._workload, phase)], axis=0)

    def _columns(self, design: Design) -> Floats:
        return np.concatenate(
            [
                self._op_columns(design, Phase.PREFILL),
                self._op_columns(design, Phase.DECODE),
                self._pricer.memory_columns(design, self._workload),
                [design.arch.parameters()],
            ]
        )

    def _block(self, d_model: int, weights: str, layer: Layer) -> Floats:
        """What one more layer adds to a model that has one like it already."""
        one, two = (Design(arch=self._arch(d_model, (layer,) * count), weights=weights) for count in (1, 2))
        return self._columns(two) - self._columns(one)

    def _shared(self, head_size: int, pair: tuple[int, int]) -> Floats:
        """What a layer adds that uses another's weights: its cache, and time that is counted elsewhere."""
        attention = Attention(heads=pair[0], kv_heads=pair[1], head_size=head_size)
        own = Layer(attention=attention, ffn=None)
        layers = (own, Layer(attention=attention, ffn=None, shares=0))
        d_model, weights = self.space.spec.d_model[0], self.space.spec.weights[0]
        one, two = (Design(arch=self._arch(d_model, layers[:count]), weights=weights) for count in (1, 2))
        return self._columns(two) - self._columns(one)

    def _end(self, d_model: int, vocab_size: int, tied: bool, weights: str) -> Floats:
        """What a model has besides its layers."""
        layer = Layer(attention=None, ffn=FeedForward(width=self.space.spec.layer.ffn_width[0]))
        one, two = (
            Design(arch=self._arch(d_model, (layer,) * count, vocab_size, tied), weights=weights) for count in (1, 2)
        )
        first = self._columns(one)
        return first - (self._columns(two) - first)


def _filled(axes: tuple[tuple[object, ...], ...], price: Callable[..., Floats]) -> Floats:
    """An array over ``axes`` whose last axis holds the columns of ``price(*values)``."""
    cells = [price(*values) for values in itertools.product(*axes)]
    return np.array(cells).reshape(*(len(axis) for axis in axes), -1)

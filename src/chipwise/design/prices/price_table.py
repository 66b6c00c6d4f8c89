"""Costs of all candidates of a space: each distinct block is evaluated once, and a candidate's costs are a sum.

A space is discrete, so its candidates consist of the same few blocks. Each distinct block is lowered to operators and
its costs are computed once. These costs ("prices" in the code) are stored in arrays, so that evaluating a million
candidates takes a few array operations. A price has several additive columns (seconds that do not depend on the rest of
the model, bytes that stream through the caches, …). Latency is a function of the summed columns, so it can depend on
the model's whole working set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.deploy.calibrate.efficiency import least_times, op_needs
from chipwise.design.prices.lookup import BlockPrices, Lookup
from chipwise.hardware.device import MachineProfile
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import formats_word
from chipwise.model.arch.layer import Layer
from chipwise.model.kinds.choices import NO_ATTENTION, Parts, Whole
from chipwise.model.kinds.image.choices import LATENTS
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.space.space_spec import ffn_block
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.memory import layer_activation_bytes, memory_parts
from chipwise.predict.cost.pricing import combine, op_price

BLOCK = 8_192  # rows evaluated at a time, so that their data fits in the caches


class Pricer(Protocol):
    """A cost model in which a model's costs follow from sums over its blocks."""

    def pass_columns(self, design: Design, workload: Workload, phase: Phase) -> Float64Array:
        """The additive columns of one pass, (columns,)."""
        ...

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Median TTFT and TPOT, each (n,), of models whose columns sum to ``prefill`` and ``decode``.

        ``prefill`` and ``decode`` are (n, columns); ``logits`` (n,) is the number of logits per pass.
        """
        ...

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Resident bytes of a design's weights and KV cache; additive over layers."""
        ...

    def activation_bytes(self, layer: Layer | None, design: Design, workload: Workload) -> float:
        """Bytes of activations inside ``layer`` of models like ``design``, or inside the head if ``layer`` is None.

        A model's activation memory is the largest value over its blocks and head.
        """
        ...

    def base_bytes(self) -> float:
        """Resident bytes of a serving process that holds no model."""
        ...


class OperatorPricer:
    """Base class of pricers that sum over a pass's operators, and evaluate each distinct operator once."""

    def __init__(self) -> None:
        self._known: dict[Op, Float64Array] = {}

    def op_columns(self, op: Op) -> Float64Array:
        """The additive columns of one operator, (columns,)."""
        raise NotImplementedError

    def pass_columns(self, design: Design, workload: Workload, phase: Phase) -> Float64Array:
        """The sum of the columns of a pass's operators, (columns,)."""
        total: Float64Array | float = 0.0
        for placed in lower(design, workload, phase):
            if placed.op not in self._known:
                self._known[placed.op] = self.op_columns(placed.op)
            total = total + self._known[placed.op]
        return np.asarray(total)


class ProfilePricer(OperatorPricer):
    """The calibrated cost model of one machine, as a :class:`Pricer`."""

    def __init__(self, profile: MachineProfile) -> None:
        super().__init__()
        self.profile = profile

    def op_columns(self, op: Op) -> Float64Array:
        """Columns of one operator; see :func:`chipwise.predict.cost.pricing.op_price`."""
        return op_price(op, self.profile)

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Times from column sums; see :func:`chipwise.predict.cost.pricing.combine`."""
        return (
            combine(prefill, self.profile, Phase.PREFILL, logits=logits),
            combine(decode, self.profile, Phase.DECODE, logits=logits),
        )

    def stored_bytes(self, design: Design, workload: Workload) -> float:
        """Bytes of the weights in all copies that the runtime keeps, plus bytes of the KV cache."""
        profile = self.profile
        parts, cost = memory_parts(design, workload, runtime=profile.runtime), profile.memory
        return parts.peak_bytes(cost) - parts.activation_bytes - cost.base_bytes

    def activation_bytes(self, layer: Layer | None, design: Design, workload: Workload) -> float:
        """Bytes by :func:`chipwise.predict.cost.memory.layer_activation_bytes`; 0 for the head (not calibrated)."""
        return 0.0 if layer is None else layer_activation_bytes(layer, design.arch, workload)

    def base_bytes(self) -> float:
        """Resident bytes of a process without a model, as measured in the calibration."""
        return self.profile.memory.base_bytes


class PeakPricer(ProfilePricer):
    """Minimum times at the machine's calibrated peaks; divided by an actual time, they give MFU and MBU."""

    def op_columns(self, op: Op) -> Float64Array:
        """Seconds, FLOPs and bytes of one operator, (4,); see :func:`chipwise.deploy.calibrate.efficiency.op_needs`."""
        return op_needs(op, self.profile)

    def latencies_s(
        self, prefill: Float64Array, decode: Float64Array, *, logits: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        """Minimum times from summed columns; see :func:`chipwise.deploy.calibrate.efficiency.least_times`."""
        return least_times(prefill, decode, self.profile)


@dataclass(frozen=True)
class Costs:
    """Costs of n candidates; every field has the shape (n,)."""

    ttft_s: Float64Array
    tpot_s: Float64Array
    peak_memory_bytes: Float64Array
    parameters: Float64Array


class PriceTable:
    """Costs of all blocks of ``space`` for one workload; ``table(rows)`` returns the costs of candidates.

    A block's price is the cost of a small model with the block minus the cost without it, so it includes all effects of
    lowering, such as a fused residual, or a prefill that keeps only the last position after the last attention. Blocks
    in the last layer have separate prices. A price has the columns of prefill and decode, stored bytes, and parameters.
    Activation bytes are not additive: a model's activation memory is the maximum over its blocks.
    """

    def __init__(self, space: SearchSpace, workload: Workload, pricer: Pricer) -> None:
        self.space, self._workload, self._pricer = space, workload, pricer
        self._columns_of: dict[tuple[object, ...], Float64Array] = {}  # caches for one ``_chosen``
        self._layer_of: dict[tuple[object, ...], Layer] = {}
        self._bare_of: dict[tuple[object, ...], Design] = {}
        self._prefill_columns = 0
        spec = space.spec
        self._first = (spec.head_size[0], spec.attention_choices()[0])
        # Prices of blocks depend on the head's weight format and on norms, for images also on positions after the stem,
        # and for ranking requests on the kind of attention. The number of steps only multiplies a pass.
        self._kind = spec.kind
        own = self._kind.choices
        decoded = LATENTS in own  # latents are decoded once per image, so the share per step depends on the steps
        norms = (name for name in ("norm", "norm_place") if name in spec.globals)
        self._apart = ("weights", *norms, *(name for name in own if name != "steps" or decoded))
        self._chosen: dict[str, Any] = {}  # values of the ``_apart`` choices for which blocks are evaluated now
        self._lookups: dict[int, Lookup] = {}

    def __call__(self, rows: Rows) -> Costs:
        """Costs of candidates as canonical rows, (n, genes)."""
        index = self.space.index
        number = np.zeros(len(rows), np.int64)
        for name in self._apart:
            number = number * len(self.space.spec.values(name)) + rows[:, index[name]]
        order = np.argsort(number, kind="stable")
        kinds, begins = np.unique(number[order], return_index=True)
        found = np.empty((len(fields(Costs)), len(rows)))
        ends = [*begins.tolist(), len(rows)][1:]
        for kind, begin, end in zip(kinds.tolist(), begins.tolist(), ends, strict=True):
            lookup = self._lookup(kind)
            for start in range(begin, end, BLOCK):
                here = order[start : min(start + BLOCK, end)]
                found[:, here] = self._costs(rows[here], lookup)
        return Costs(*found)

    def _lookup(self, kind: int) -> Lookup:
        """The lookup for combination number ``kind`` of those choices that affect all prices."""
        if kind not in self._lookups:
            rest, chosen = kind, dict[str, Any]()
            for name in reversed(self._apart):
                values = self.space.spec.values(name)
                rest, place = divmod(rest, len(values))
                chosen[name] = values[place]
            self._chosen = chosen
            for kept in (self._columns_of, self._layer_of, self._bare_of):
                kept.clear()
            self._lookups[kind] = Lookup(self.space, self._prices(chosen["weights"]))
        return self._lookups[kind]

    def _costs(self, rows: Rows, lookup: Lookup) -> tuple[Float64Array, ...]:
        """The fields of :class:`Costs`, for rows that use one lookup."""
        sums, widest = lookup(rows)
        image = self.space.spec.image
        chosen = self.space.outputs(rows) if image is None or not image.steps else np.zeros(len(rows))  # no logits
        logits = self._workload.batch * chosen.astype(np.float64)
        prefill, decode = sums[: self._prefill_columns].T, sums[self._prefill_columns : -2].T
        ttft_s, tpot_s = self._pricer.latencies_s(prefill, decode, logits=logits)
        return (
            ttft_s * self.space.passes(rows),
            tpot_s,
            self._pricer.base_bytes() + sums[-2] + widest,
            sums[-1],
        )

    def _prices(self, head: str) -> BlockPrices:
        """Prices of all blocks for models whose head has the weight format ``head``.

        Blocks are evaluated in each weight format that layers may have (only the head's, unless the space gives layers
        a choice). The bare layer (without attention and FFN) always has the head's format.
        """
        spec = self.space.spec
        pairs, kinds, widths = spec.attention_choices(), spec.layer.ffn, spec.layer.ffn_width
        formats = (head,) if spec.layer.weights is None else spec.layer.weights
        ends = (spec.d_model, spec.vocab_size, spec.tie_embeddings)
        attention = (formats, spec.d_model, spec.conv, spec.head_size, pairs)
        ffn = (formats, spec.d_model, spec.conv, kinds, widths)
        layer, some = self._layer, ffn_block(kinds[0], widths[0])

        def alone(weights: str, d: int, one: Layer) -> Float64Array:
            return self._columns(d, head, [weights], one)

        def beside(weights: str, d: int, one: Layer, instead: Layer | None = None) -> Float64Array:
            """Cost of ``one`` before a bare layer, minus the cost of the bare layer (after ``instead`` if given)."""
            before = [layer()] if instead is None else [instead, layer()]
            both = self._columns(d, head, [weights, head], one, layer())
            return both - self._columns(d, head, [weights, head][-len(before) :], *before)

        def last_attention(weights: str, d: int, conv: str, size: int, pair: Parts) -> Float64Array:
            if pair == NO_ATTENTION:
                return 0 * alone(head, d, layer())
            if conv != "both":
                return alone(weights, d, layer(pair, size, conv=conv)) - alone(head, d, layer())
            # With a convolution before the feed-forward, this attention keeps all positions up to that convolution.
            with_ffn = layer(pair, size, ffn=some, conv=conv), layer(ffn=some, conv="ffn")
            change = alone(weights, d, layer()) - alone(head, d, layer())  # FFN prices are relative to a bare layer
            return alone(weights, d, with_ffn[0]) - alone(weights, d, with_ffn[1]) + change

        def feed_forward(conv: str, *which: Any) -> Layer:
            return layer(ffn=ffn_block(*which), conv="ffn" if conv == "both" else "none")

        def cache(weights: str, d: int, conv: str, size: int, pair: Parts) -> Float64Array:
            """Price of one more layer that shares weights: only its caches, including the FFN convolution's."""
            own, sharer = (layer(pair, size, some if conv == "both" else None, conv, shares) for shares in (None, 0))
            both = self._columns(d, head, [weights, weights], own, sharer)
            return both - self._columns(d, head, [weights], own)

        return BlockPrices(
            ends=_filled(ends, partial(self._end, head)),
            bare=_filled((spec.d_model,), lambda d: beside(head, d, layer()))[None, :, None, None, None],
            attention=_filled(
                attention, lambda w, d, c, size, pair: beside(w, d, layer(pair, size, conv=_before_attention(c)))
            ),
            last_attention=_filled(attention, last_attention),
            ffn=_filled(ffn, lambda w, d, c, *f: beside(w, d, feed_forward(c, *f), layer())),
            last_ffn=_filled(ffn, lambda w, d, c, *f: alone(w, d, feed_forward(c, *f)) - alone(w, d, layer())),
            cache=_filled(attention, cache) if "pairs" in spec.sharing else None,
            ends_room=_filled(ends, lambda *end: self._activations(None, head, *end))[..., 0],
            attention_room=_filled(
                attention,
                lambda w, d, c, size, pair: self._activations(layer(pair, size), head, d),
            )[..., 0],
            ffn_room=_filled(
                ffn, lambda w, d, c, *f: self._activations(Layer(attention=None, ffn=ffn_block(*f)), head, d)
            )[..., 0],
        )

    def _layer(
        self,
        pair: Parts | None = None,
        head_size: int | None = None,
        ffn: FeedForward | None = None,
        conv: str = "none",
        shares: int | None = None,
    ) -> Layer:
        """Builds a layer; ``conv`` says where convolutions are: ``attention``, ``ffn``, ``both`` or ``none``."""
        key = (pair, head_size, ffn, conv, shares)
        if key not in self._layer_of:
            taps = self.space.spec.conv_taps
            bare = self._kind.layer(
                self._chosen, pair or self._first[1], head_size=head_size or self._first[0], ffn=ffn
            )
            self._layer_of[key] = replace(
                bare,
                shares=shares,
                attention_conv=taps if conv in ("attention", "both") else 0,
                ffn_conv=taps if conv in ("ffn", "both") else 0,
            )
        return self._layer_of[key]

    def _design(
        self, d_model: int, head: str, formats: list[str], layers: list[Layer], vocab_size: int, tied: bool
    ) -> Design:
        spec = self.space.spec
        norm, place = (self._chosen.get(each, spec.usual(each)) for each in ("norm", "norm_place"))
        whole = Whole(name="model", d_model=d_model, norm=norm, max_tokens=spec.max_tokens, norm_place=place)
        chosen = {**self._chosen, "vocab_size": vocab_size, "tie_embeddings": tied}
        arch = self._kind.arch(chosen, layers, whole)
        return Design(arch=arch, weights=formats_word(formats, head))

    def _columns(
        self, d_model: int, head: str, formats: list[str], *layers: Layer, vocab_size: int = 256, tied: bool = True
    ) -> Float64Array:
        """Cost columns of prefill and decode, stored bytes and parameters of a model with these layers and formats."""
        key = (d_model, head, *formats, *layers, vocab_size, tied)
        if key not in self._columns_of:
            design = self._design(d_model, head, formats, list(layers), vocab_size, tied)
            prefill, decode = (
                self._pricer.pass_columns(design, self._workload, phase) for phase in (Phase.PREFILL, Phase.DECODE)
            )
            stored = [self._pricer.stored_bytes(design, self._workload), design.arch.parameters()]
            self._prefill_columns = len(prefill)
            self._columns_of[key] = np.concatenate([prefill, decode, stored])
        return self._columns_of[key]

    def _end(self, head: str, d_model: int, vocab_size: int, tied: bool) -> Float64Array:
        """Cost columns of a model with one bare layer, which are subtracted to get block prices."""
        return self._columns(d_model, head, [head], self._layer(), vocab_size=vocab_size, tied=tied)

    def _activations(
        self,
        layer: Layer | None,
        head: str,
        d_model: int,
        vocab_size: int = 256,
        tied: bool = True,
    ) -> Float64Array:
        key = (d_model, head, vocab_size, tied)
        if key not in self._bare_of:
            self._bare_of[key] = self._design(d_model, head, [head], [self._layer()], vocab_size, tied)
        return np.array([self._pricer.activation_bytes(layer, self._bare_of[key], self._request)], dtype=float)

    @property
    def _request(self) -> Workload:
        """The workload; for images and ranking requests, its tokens are the positions after the stem."""
        own = self.space.spec.own
        if own is None:
            return self._workload
        return replace(self._workload, prompt_tokens=own.request_tokens(self._chosen), new_tokens=1)


def _before_attention(conv: str) -> str:
    """The choice ``conv`` as it applies to a layer that has only attention."""
    return "none" if conv == "none" else "attention"


def _filled(axes: tuple[tuple[object, ...], ...], price: Callable[..., Float64Array]) -> Float64Array:
    """Array of ``price(*values)`` for all combinations of the values in ``axes``; its last axis holds the columns."""
    cells = [price(*values) for values in itertools.product(*axes)]
    return np.array(cells).reshape(*(len(axis) for axis in axes), -1)

"""Sums block costs for many candidates at once, with one table for attention and FFN and one gather per layer.

A table row holds the summed costs of one attention block and one FFN in one role of the layer (inner, last, sharing
weights, absent). Cost columns that are always zero are left out. The candidates' genes are read column by column from a
transposed block that fits in the CPU caches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.model.kinds.choices import NO_ATTENTION
from chipwise.model.space.search_space import Rows, SearchSpace
from chipwise.model.space.space_spec import LAYER_CHOICES, LAYER_WEIGHTS

Index = NDArray[np.intp]
_BETWEEN, _SHARER = 0, 2  # indices of roles; plus 1: the same role in the last layer; the last index means "absent"
_FUSED_BYTES = 64e6  # if the joint table were larger, attention and FFN are looked up separately


@dataclass(frozen=True)
class BlockPrices:
    """Costs of a space's blocks, for one weight format of the head.

    The last axis of each array holds the cost columns: columns of prefill and decode, stored bytes, and parameters. The
    other axes of attention are weight format, width, convolutions, head size and heads; those of an FFN are weight
    format, width, convolutions, kind and FFN width.
    """

    ends: Float64Array  # (width, vocabulary, tied, columns): a model with one bare layer
    bare: Float64Array  # the bare layer that ``ends`` includes, by width; axes as for attention
    attention: Float64Array
    last_attention: Float64Array
    ffn: Float64Array
    last_ffn: Float64Array
    cache: Float64Array | None  # axes as for attention: one more layer that shares weights; None without sharing
    ends_room: Float64Array  # axes as for ends: bytes of the head's activations
    attention_room: Float64Array  # bytes of activations in each attention block
    ffn_room: Float64Array


class Lookup:
    """Sums block costs for candidates (rows of genes); instances are called like functions.

    Args:
        space: The space.
        prices: Costs of the space's blocks.
    """

    def __init__(self, space: SearchSpace, prices: BlockPrices) -> None:
        self._space, self._genes = space, len(space.genes)
        self._columns = prices.ends.shape[-1]
        places = _places(prices)
        parts = [prices.ends, *(part for pair in places for part in pair)]
        self._used = np.flatnonzero(np.any([part.reshape(-1, self._columns).any(axis=0) for part in parts], axis=0))
        self._ends = prices.ends[..., self._used].reshape(-1, len(self._used))
        self._ends_room = prices.ends_room.ravel()
        self._rooms = prices.attention_room, prices.ffn_room
        attention, ffn = ([pair[i][..., self._used] for pair in places] for i in (0, 1))
        self._attentions, self._ffns = prices.attention_room.size, prices.ffn_room.size
        each = self._attentions * self._ffns // math.prod(prices.ffn_room.shape[:3])  # both blocks have the first axes
        self._fused = len(places) * each * (len(self._used) + 1) * 8 <= _FUSED_BYTES
        if self._fused:
            room = np.maximum(prices.attention_room[..., None, None], prices.ffn_room[:, :, :, None, None])
            both = [a[..., None, None, :] + f[:, :, :, None, None] for a, f in zip(attention, ffn, strict=True)]
            self._tables = [_stacked(both, room)]
        else:
            self._tables = [_stacked(attention, prices.attention_room), _stacked(ffn, prices.ffn_room)]
        self._absent = len(places) - 1
        self._place = self._place_of(len(places))

    def _place_of(self, places: int) -> NDArray[np.int64]:
        """Each layer's role for every combination of sharing and depth, (layer, sharing × depth)."""
        spec = self._space.spec
        place = np.full((max(spec.depth), len(spec.sharing), len(spec.depth)), places - 1)
        for s, sharing in enumerate(spec.sharing):
            for d, depth in enumerate(spec.depth):
                for layer in range(depth):
                    sharer = sharing == "pairs" and layer % 2 == 1
                    place[layer, s, d] = (_SHARER if sharer else _BETWEEN) + (layer == depth - 1)
        return place.reshape(len(place), -1)

    def __call__(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Sums of all cost columns, (columns, n), and activation bytes of the largest block or head, (n,)."""
        spec, index = self._space.spec, self._space.index
        genes = np.ascontiguousarray(rows.T, dtype=np.intp)
        where = genes[index["sharing"]] * len(spec.depth) + genes[index["depth"]]
        d = genes[index["d_model"]]
        end = (d * len(spec.vocab_size) + genes[index["vocab_size"]]) * len(spec.tie_embeddings)
        end += genes[index["tie_embeddings"]]
        total = np.zeros((len(rows), len(self._used) + 1))
        total[:, :-1] = self._ends[end]
        widest, cell = self._ends_room[end], np.empty_like(total)
        _, _, convs, sizes, pairs = self._rooms[0].shape
        _, _, _, kinds, widths = self._rooms[1].shape
        of_format = [room[0].size for room in self._rooms]
        wide = d * convs + genes[index["conv"]] if "conv" in index else d
        attention_base = (wide * sizes + genes[index["head_size"]]) * pairs
        ffn_base = wide * (kinds * widths)
        last = self._last_attention(genes, where)
        for layer, place_of in enumerate(self._place):
            place = place_of[where]
            if last is not None:  # layers after the last attention process one position, like the last layer
                place = np.where((layer >= last) & (place < self._absent), place | 1, place)
            pair, kind, width = (self._read(genes, name, layer, where) for name in LAYER_CHOICES)
            attention = place * self._attentions + attention_base + pair
            ffn = kind * widths + width
            weights = self._read(genes, LAYER_WEIGHTS, layer, where) if LAYER_WEIGHTS in spec.layer_choices else None
            if weights is not None:
                attention += weights * of_format[0]
            if self._fused:
                cells = [attention * (kinds * widths) + ffn]
            else:
                cells = [attention, place * self._ffns + ffn_base + ffn]
                if weights is not None:
                    cells[1] += weights * of_format[1]
            for table, chosen in zip(self._tables, cells, strict=True):
                np.take(table, chosen, axis=0, out=cell, mode="clip")
                total += cell
                np.maximum(widest, cell[:, -1], out=widest)
        sums = np.zeros((self._columns, len(rows)))
        sums[self._used] = total[:, :-1].T
        return sums, widest

    def _last_attention(self, genes: Index, where: Index) -> Index | None:
        """Index of the last layer with attention in each row, (n,); None if every layer of the space has attention."""
        pairs, depths = self._space.spec.attention_choices(), np.array(self._space.spec.depth)
        if NO_ATTENTION not in pairs:
            return None
        last, depth = np.zeros(len(where), np.intp), depths[genes[self._space.index["depth"]]]
        for layer in range(depths.max()):
            attends = self._read(genes, "attention", layer, where) != pairs.index(NO_ATTENTION)
            last[attends & (layer < depth)] = layer
        return last

    def _read(self, genes: Index, name: str, layer: int, where: Index) -> Index:
        """The gene ``name`` of ``layer`` in each row, (n,)."""
        slots = self._space.slots[name].of[:, :, layer].ravel()
        columns = self._space.columns[name]
        alike = (slots == slots[0]).all()
        read: Index = genes[columns[slots[0]]] if alike else genes[columns[slots][where], np.arange(genes.shape[1])]
        return read


def _places(prices: BlockPrices) -> list[tuple[Float64Array, Float64Array]]:
    """Costs of attention and FFN, for every role; a layer that shares weights adds cache bytes but no weight bytes."""
    found = [(prices.attention, prices.ffn), (prices.last_attention, prices.last_ffn)]
    if prices.cache is not None:
        # A last layer with attention takes the place of the bare layer that ``ends`` includes.
        last = np.where(prices.cache.any(axis=-1, keepdims=True), prices.cache - prices.bare, 0.0)
        for (attention, ffn), cache in zip(tuple(found), (prices.cache, last), strict=True):
            sharer, without = attention.copy(), ffn.copy()
            sharer[..., -2:], without[..., -2:] = cache[..., -2:], 0.0
            found.append((sharer, without))
    return [*found, (np.zeros_like(prices.attention), np.zeros_like(prices.ffn))]


def _stacked(places: list[Float64Array], room: Float64Array) -> Float64Array:
    """The arrays of all roles stacked to one table; its last column is activation bytes, 0 for absent layers."""
    rooms = np.stack([*[room] * (len(places) - 1), np.zeros_like(room)])
    both = np.concatenate([np.stack(places), rooms[..., None]], axis=-1)
    return np.ascontiguousarray(both.reshape(-1, both.shape[-1]))

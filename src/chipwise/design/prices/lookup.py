"""Sums block prices for many candidates at once: one fused table, one gather per layer.

A cell of the table holds the sum of a layer's attention and FFN, for each role of a layer (inner, last, sharing
weights, absent); columns of zeros are left out. The genes of rows are read column by column from a transposed block
that fits in the caches.
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
_BETWEEN, _SHARER = 0, 2  # indices of roles; add one for the last layer; the last role is "absent"
_FUSED_BYTES = 64e6  # for larger tables, attention and FFN are looked up separately


@dataclass(frozen=True)
class BlockPrices:
    """Prices of a space's blocks for one weight format of the head; the last axis holds the columns, stored bytes,
    parameters. Attention is indexed by its weight format, width, convolutions, head size and pair, an FFN by its weight
    format, width, convolutions, kind and FFN width."""

    ends: Float64Array  # (width, vocabulary, tied, columns): a model with one bare layer
    bare: Float64Array  # indexed like attention, by width: the bare layer that ``ends`` includes
    attention: Float64Array
    last_attention: Float64Array
    ffn: Float64Array
    last_ffn: Float64Array
    cache: Float64Array | None  # like attention: one more layer that shares weights; None without sharing
    ends_room: Float64Array  # indexed like ends: bytes of the head's activations
    attention_room: Float64Array  # same, of each attention block
    ffn_room: Float64Array


class Lookup:
    """Sums prices of rows; call it as a function.

    Args:
        space: The space.
        prices: Prices of its blocks.
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
        each = self._attentions * self._ffns // math.prod(prices.ffn_room.shape[:3])  # axes of both blocks
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
        """The role of each layer, (layer, sharing × depth)."""
        spec = self._space.spec
        place = np.full((max(spec.depth), len(spec.sharing), len(spec.depth)), places - 1)
        for s, sharing in enumerate(spec.sharing):
            for d, depth in enumerate(spec.depth):
                for layer in range(depth):
                    sharer = sharing == "pairs" and layer % 2 == 1
                    place[layer, s, d] = (_SHARER if sharer else _BETWEEN) + (layer == depth - 1)
        return place.reshape(len(place), -1)

    def __call__(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Summed columns, (columns, n), and the activations of the largest block or head, (n,)."""
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
        """The last layer with attention in each row, (n,); None in spaces in which that is the last layer."""
        pairs, depths = self._space.spec.attention_choices(), np.array(self._space.spec.depth)
        if NO_ATTENTION not in pairs:
            return None
        last, depth = np.zeros(len(where), np.intp), depths[genes[self._space.index["depth"]]]
        for layer in range(depths.max()):
            attends = self._read(genes, "attention", layer, where) != pairs.index(NO_ATTENTION)
            last[attends & (layer < depth)] = layer
        return last

    def _read(self, genes: Index, name: str, layer: int, where: Index) -> Index:
        """Genes of ``layer`` in each row, (n,)."""
        slots = self._space.slots[name].of[:, :, layer].ravel()
        columns = self._space.columns[name]
        alike = (slots == slots[0]).all()
        read: Index = genes[columns[slots[0]]] if alike else genes[columns[slots][where], np.arange(genes.shape[1])]
        return read


def _places(prices: BlockPrices) -> list[tuple[Float64Array, Float64Array]]:
    """Prices of attention and FFN in every role; a layer that shares weights has its own cache but no weights."""
    found = [(prices.attention, prices.ffn), (prices.last_attention, prices.last_ffn)]
    if prices.cache is not None:
        # A last layer with attention replaces the bare one that ``ends`` includes.
        last = np.where(prices.cache.any(axis=-1, keepdims=True), prices.cache - prices.bare, 0.0)
        for (attention, ffn), cache in zip(tuple(found), (prices.cache, last), strict=True):
            sharer, without = attention.copy(), ffn.copy()
            sharer[..., -2:], without[..., -2:] = cache[..., -2:], 0.0
            found.append((sharer, without))
    return [*found, (np.zeros_like(prices.attention), np.zeros_like(prices.ffn))]


def _stacked(places: list[Float64Array], room: Float64Array) -> Float64Array:
    """A table with one row per cell, ordered by role; the last column is activations, 0 for absent layers."""
    rooms = np.stack([*[room] * (len(places) - 1), np.zeros_like(room)])
    both = np.concatenate([np.stack(places), rooms[..., None]], axis=-1)
    return np.ascontiguousarray(both.reshape(-1, both.shape[-1]))

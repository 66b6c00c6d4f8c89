"""Properties of a model that the scaling law uses: parameters of the layers, width, depth and proportions.

Every field is a number or an array, so the same code handles one model and a million rows of a space. If layers differ,
feed-forward and attention widths, heads and formats are means over the layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward, FeedForwardBlock, MixtureOfExperts
from chipwise.model.arch.mixers import Attention, GatedDelta, Mamba2, ShortConv


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes of n models; every field is (n,) or a number.

    ``least`` and ``most`` are numbers of parameters in the layers, without embeddings and head. ``least`` counts
    only parameters that are active per token; weights that layers share count once. ``most`` counts all parameters;
    shared weights count once for each layer that uses them. Dense models without shared weights have ``least == most``.
    """

    least: ArrayLike
    most: ArrayLike
    width: ArrayLike
    depth: ArrayLike
    ffn_share: ArrayLike = 12.0  # active feed-forward parameters of a layer, divided by the squared model width
    queries_per_kv: ArrayLike = 2.0  # query heads per key-value head
    attention_width: ArrayLike = 1.0  # query heads times head size, divided by the model width
    weight_bits: ArrayLike = 16.0  # mean bits per value of the layers' matrices

    def __len__(self) -> int:
        return int(np.size(self.least))

    def columns(self) -> Float64Array:
        """All fields as an array (8, n), in the order of their declaration."""
        return np.array(np.broadcast_arrays(*(np.atleast_1d(getattr(self, f.name)) for f in fields(self))), float)

    @classmethod
    def of(cls, *models: ArchSpec | Design) -> Shapes:
        """The shapes of decoders; weights count as 16 bits unless a format is given.

        Raises:
            Unsupported: A model does not predict next tokens, or has no layers.
        """
        rows = np.array([_row(model) for model in models], float).T
        return cls(**dict(zip((field.name for field in fields(cls)), rows, strict=True)))


def recurrent(arch: ArchSpec) -> bool:
    """Whether any layer has a recurrence instead of attention."""
    return any(isinstance(layer.attention, GatedDelta | Mamba2 | ShortConv) for layer in arch.layers)


def _row(model: ArchSpec | Design) -> tuple[float, ...]:
    arch = model.arch if isinstance(model, Design) else model
    formats = model.formats.layers if isinstance(model, Design) else ()
    if arch.encoder or not arch.causal or not arch.head.writes:
        raise Unsupported(f"{arch.name}: the published laws cover only decoders that predict the next token")
    if not arch.layers:
        raise Unsupported(f"{arch.name}: the law does not apply to a model without layers")
    owned = [layer for layer in arch.layers if layer.shares is None]
    square = float(arch.d_model**2)
    heads = [layer.attention for layer in arch.layers if isinstance(layer.attention, Attention)]
    across = [item.heads * item.head_size / arch.d_model for item in heads]
    return (
        float(sum(arch.layer_parameters(layer, active=True) for layer in owned)),
        float(sum(arch.layer_parameters(layer) for layer in arch.layers)),
        float(arch.d_model),
        float(len(arch.layers)),
        float(np.mean([_met(layer.ffn, arch.d_model) for layer in arch.layers])) / square,
        float(np.mean([item.heads / item.kv_heads for item in heads])) if heads else 1.0,
        float(np.mean(across)) if heads else 1.0,
        float(np.mean([weight_format(name).stored_bits for name in formats])) if formats else 16.0,
    )


def _met(block: FeedForwardBlock | None, d_model: int) -> float:
    return float(block.active_parameters(d_model)) if isinstance(block, FeedForward | MixtureOfExperts) else 0.0

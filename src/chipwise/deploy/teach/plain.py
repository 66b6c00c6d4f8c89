"""A baseline: ridge regression on the raw sizes of a model and its request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import FORMATS
from chipwise.deploy.teach.observations import MeasuredRow, Observations
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import Layer
from chipwise.model.published.read import resolve

PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)


def raw_choices(rows: Sequence[MeasuredRow], seen: Observations) -> Float64Array:
    """Raw features of a model and its request, without the chip, (n, features).

    Sizes are logarithms: widths, layers, heads, FFN, vocabulary of decoder and encoder, tokens, batch, bits per weight;
    one column for each runtime, variant and quantity.
    """
    archs: dict[str, ArchSpec] = {}
    for row in rows:
        if row.identity not in archs:
            archs[row.identity] = row.model if isinstance(row.model, ArchSpec) else resolve(row.model)
    chosen = [rows[int(i)] for i in seen.rows]
    sizes = [[*_sizes(archs[row.identity]), *_request(row)] for row in chosen]
    marks = [
        [quantity, f"runtime {row.runtime}", row.variant] for row, quantity in zip(chosen, seen.quantities, strict=True)
    ]
    names = sorted({name for each in marks for name in each})
    return np.hstack([np.array(sizes), np.array([[float(name in each) for name in names] for each in marks])])


def _sizes(arch: ArchSpec) -> list[float]:
    return [
        np.log(arch.d_model),
        np.log(arch.encoder_width),
        np.log(arch.vocab_size),
        *_stack(arch.layers),
        *_stack(arch.encoder),
    ]


def _stack(layers: Sequence[Layer]) -> list[float]:
    """Depth, and means over the layers of heads, key heads and FFN widths."""
    if not layers:
        return [0.0] * 4
    heads = [float(getattr(layer.attention, "heads", 0)) for layer in layers]
    kv_heads = [float(getattr(layer.attention, "kv_heads", 0)) for layer in layers]
    widths = [float(getattr(layer.ffn, "width", 0) or 0) for layer in layers]
    return [float(np.log(len(layers))), *(float(np.log1p(np.mean(each))) for each in (heads, kv_heads, widths))]


def _request(row: MeasuredRow) -> list[float]:
    bits = FORMATS[row.weights].bits_per_weight if row.weights in FORMATS else 16.0
    past = row.prompt_tokens if row.context is None else row.context
    return [float(np.log(value)) for value in (row.prompt_tokens, row.new_tokens, 1 + past, row.batch, bits)]


def ridge(features: Float64Array, seconds: Float64Array, asked: Float64Array) -> Float64Array:
    """Seconds of ``asked``, from logarithms of seconds on standardised features; the penalty by leave-one-out.

    References:
        Golub, Heath and Wahba 1979, Generalized cross-validation, Technometrics 21:215 (the closed form).
    """
    mean, spread = features.mean(axis=0), features.std(axis=0)
    kept = spread > 1e-9
    x, z = ((each[:, kept] - mean[kept]) / spread[kept] for each in (features, asked))
    y = np.log(seconds)
    centre = y.mean()
    best, answer = np.inf, np.full(len(asked), centre)
    for penalty in PENALTIES:
        gram = x.T @ x + penalty * np.eye(x.shape[1])
        solved = np.linalg.solve(gram, x.T)
        hat = x @ solved
        left = (y - centre - hat @ (y - centre)) / np.maximum(1 - np.diag(hat) - 1 / len(y), 1e-3)
        error = float(np.mean(left**2))
        if error < best:
            best, answer = error, centre + z @ (solved @ (y - centre))
    return np.asarray(np.exp(np.clip(answer, y.min() - 3, y.max() + 3)))

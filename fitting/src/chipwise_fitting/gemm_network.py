"""Trains the network that corrects the physics of products (see ``kernels/gemm_network.py``). Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array, Float64Array
from chipwise.errors import MissingExtra
from chipwise.predict.kernels.gemm_network import SLOPE, Network

BATCH = 2048
SOFT = 0.02  # errors below this count as squares


def train(
    x_RF: Float32Array,
    kinds: npt.NDArray[np.int64],
    targets: Float64Array,
    names: Sequence[str],
    *,
    hidden: tuple[int, int],
    epochs: float,
    bound: float,
    seed: int,
    weight_decay: float = 1e-4,
    weights: Float64Array | None = None,
    general: npt.NDArray[np.int64] | None = None,
    forget: float = 0.0,
) -> Network:
    """Trains a network that predicts ``targets`` (logarithms), by mean absolute error.

    Args:
        x_RF: Features, one row for each kernel.
        kinds: Each row's index into ``names``.
        targets: log(measured / physics).
        names: The kinds of kernels.
        hidden: Widths of the two layers.
        epochs: Passes over the rows.
        bound: Targets are clipped to ± this.
        seed: Random seed of the first weights and the order of rows.
        weight_decay: Weight decay of AdamW.
        weights: Weights of the rows; equal if absent.
        general: For each kind, the index of the general kind that represents devices not known by name.
        forget: Share of rows that are trained as their general kind.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "tables", of="chipwise-fitting") from error
    torch.manual_seed(seed)
    mean, scale = x_RF.mean(axis=0), x_RF.std(axis=0) + np.float32(1e-6)
    x = torch.from_numpy(np.clip((x_RF - mean) / scale, -4, 4))
    y = torch.from_numpy(np.clip(targets, -bound, bound).astype(np.float32))
    kind = torch.from_numpy(kinds)
    share = torch.ones_like(y) if weights is None else torch.from_numpy((weights / weights.mean()).astype(np.float32))
    count, (wide, narrow) = len(names), hidden
    layers = [torch.nn.Linear(x.shape[1], wide), torch.nn.Linear(wide, narrow), torch.nn.Linear(narrow, 1)]
    own = {"gain": wide, "first": wide, "second": narrow, "last": narrow, "offset": 1}
    tables = {name: torch.zeros(count, width, requires_grad=True) for name, width in own.items()}
    parameters = [p for layer in layers for p in layer.parameters()] + list(tables.values())
    optimiser = torch.optim.AdamW(parameters, lr=4e-3, weight_decay=weight_decay)
    steps = max(1, round(epochs * len(y) / BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps, pct_start=0.1)
    shown = torch.from_numpy(general) if general is not None else None
    order, at = torch.randperm(len(y)), 0
    for _ in range(steps):
        if at + BATCH > len(y):
            order, at = torch.randperm(len(y)), 0
        rows = order[at : at + BATCH]
        at += BATCH
        named = kind[rows]
        if shown is not None:
            named = torch.where(torch.rand(len(rows)) < forget, shown[named], named)
        out = _forward(x[rows], named, layers, tables)
        miss = out - y[rows]
        loss = (torch.sqrt(miss * miss + SOFT**2) * share[rows]).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return _network(layers, tables, mean, scale, tuple(names), bound)


def _forward(x: Any, named: Any, layers: Any, tables: Any) -> Any:
    """Computes the network's output for rows of features and their kinds."""
    from torch.nn.functional import leaky_relu, linear

    first, second, last = layers
    hidden = linear(x, first.weight) * (1 + tables["gain"][named]) + first.bias + tables["first"][named]
    hidden = leaky_relu(second(leaky_relu(hidden, SLOPE)) + tables["second"][named], SLOPE)
    return (hidden * (last.weight + tables["last"][named])).sum(1) + last.bias + tables["offset"][named][:, 0]


def _network(
    layers: Any, tables: Any, mean: Float32Array, scale: Float32Array, names: tuple[str, ...], bound: float
) -> Network:
    def plain(tensor: Any) -> Float32Array:
        return np.ascontiguousarray(tensor.detach().numpy().astype(np.float32))

    first, second, last = layers
    return Network(
        mean=mean,
        scale=scale,
        first=plain(first.weight.T),
        first_bias=plain(first.bias + tables["first"]),
        first_gain=plain(tables["gain"]),
        second=plain(second.weight.T),
        second_bias=plain(second.bias + tables["second"]),
        last=plain(last.weight + tables["last"]),
        offset=plain(last.bias + tables["offset"][:, 0]),
        kinds=names,
        bound=bound,
    )

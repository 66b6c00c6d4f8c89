"""Computes the importance of heads and neurons on calibration data, and compensates for removed ones by least squares.

A block adds A·Wᵀ to the residual stream, where A are its inner activations (tokens × neurons, or tokens × head
outputs). Importance and compensation both follow from the second moments of A. The importance of neuron or head g is
its contribution tr(W_g·AᵀA_gg·W_gᵀ). If only the columns K are kept, the matrix with the least squared error of A·Wᵀ is
W·G_:K·(G_KK)⁻¹, where G is the covariance of A.

References:
    Activation-based importance: Muralidharan et al. 2024, arXiv:2407.14679 (width, heads, neurons, depth).
    Least-squares compensation: Frantar and Alistarh 2022, Optimal Brain Compression, arXiv:2208.11580.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chipwise.core.arrays import Float32Array
from chipwise.design.shrink.forward import Weights, watching
from chipwise.design.shrink.material import Examples
from chipwise.design.shrink.sizes import Index, Sizes, blocks, generates, whole_sizes
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.formats import matrix_of
from chipwise.model.walk.module import MOST_ROWS
from chipwise.training.loop.checkpoint import read_state, write_state

SCHEMA = "chipwise.statistics/1"
_BACK = {"attention": "out", "ffn": "down"}
_RIDGE = 1e-4  # share of the mean variance that is added, because columns may be nearly collinear


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Means and second moments of inner activations on calibration data; entries are in the order of the weights."""

    means: Mapping[str, Tensor]  # mean of each block's inner activations, by name such as ``layers.0.ffn``
    moments: Mapping[str, Tensor]  # AᵀA over the tokens, with the same keys
    influence: tuple[float, ...]  # per layer: 1 - cosine between the stream before and after it


def save_statistics(found: Statistics, path: Path) -> None:
    """Writes statistics to a file, so that a stopped run can reuse them.

    Raises:
        StorageError: The disk is full.
    """
    parts = {f"means/{name}": value for name, value in found.means.items()}
    parts |= {f"moments/{name}": value for name, value in found.moments.items()}
    write_state(path, SCHEMA, "", parts, {"influence": found.influence})


def load_statistics(path: Path) -> Statistics | None:
    """Reads a file that :func:`save_statistics` wrote; None if the file is missing or damaged."""
    state = read_state(path, SCHEMA, "")
    if state is None:
        return None
    parts, facts = state
    means, moments = (
        {name.removeprefix(kind): value for name, value in parts.items() if name.startswith(kind)}
        for kind in ("means/", "moments/")
    )
    return Statistics(means=means, moments=moments, influence=tuple(facts.sequence("influence", float)))


def gather(arch: ArchSpec, weights: Weights, examples: Examples) -> Statistics:
    """Runs the model on ``examples``, and returns the statistics of its inner activations."""
    seen: dict[str, Tensor | None] = {"mask": None}
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def add(name: str, value: Tensor, count: int) -> None:
        sums[name] = sums[name] + value if name in sums else value
        counts[name] = counts.get(name, 0) + count

    def chosen(values: Tensor) -> Tensor:
        """The values at all positions that are not padding."""
        mask = seen["mask"]
        return values.flatten(0, -2) if mask is None else values[mask]

    def inner(place: str) -> Any:
        def record(given: Tensor, _out: Tensor) -> None:
            rows = chosen(given)
            add(f"{place}.sum", rows.sum(0), len(rows))
            add(f"{place}.moment", rows.T @ rows, len(rows))

        return record

    def layer(number: int) -> Any:
        def record(given: Tensor, out: Any) -> None:
            after = out[0] if isinstance(out, tuple) else out
            alike = F.cosine_similarity(chosen(given), chosen(after), dim=-1)
            add(f"influence.{number}", (1 - alike).sum(), len(alike))

        return record

    watch = {f"layers.{i}.{kind}.{_BACK[kind]}": inner(f"layers.{i}.{kind}") for i, kind in blocks(arch)}
    watch |= {f"layers.{i}": layer(i) for i in range(len(arch.layers))}
    with torch.no_grad(), watching(arch, watch):
        for seen["mask"], run in examples.passes(arch, weights):
            run()
    places = [f"layers.{i}.{kind}" for i, kind in blocks(arch)]
    return Statistics(
        means={place: sums[f"{place}.sum"] / counts[f"{place}.sum"] for place in places},
        moments={place: sums[f"{place}.moment"] / counts[f"{place}.sum"] for place in places},
        influence=tuple(float(sums[f"influence.{i}"]) / counts[f"influence.{i}"] for i in range(len(arch.layers))),
    )


def matrix_inputs(arch: ArchSpec, weights: Weights, examples: Examples) -> dict[str, Float32Array]:
    """Maps each weight matrix's name to the first rows of its inputs on ``examples``, (rows, k), without padding."""
    rows: dict[str, list[Tensor]] = {}
    seen: dict[str, Tensor | None] = {}

    def keep(name: str) -> Callable[[Tensor, Any], None]:
        def record(given: Tensor, made: Tensor) -> None:
            held, mask = rows.setdefault(name, []), seen["mask"]
            x = made if name == "head.weight" else given
            real = x[mask] if mask is not None and x.shape[:-1] == mask.shape else x.flatten(end_dim=-2)
            held.append(real[: max(0, MOST_ROWS - sum(map(len, held)))].float())

        return record

    matrices = [name for name, value in weights.items() if value.ndim == 2 and matrix_of(name) is not None]
    watch = {name.removesuffix(".weight"): keep(name) for name in matrices if not name.startswith("head.")}
    if generates(arch):  # the head's input is the output of the last norm
        watch["norm"] = keep("head.weight")
    with torch.no_grad(), watching(arch, watch):
        for seen["mask"], run in examples.passes(arch, weights):
            run()
    found = {name: torch.cat(held).numpy() for name, held in rows.items()}
    return found | ({"embedding.weight": found["head.weight"]} if generates(arch) else {})


def importance_order(arch: ArchSpec, weights: Weights, found: Statistics) -> dict[str, Index]:
    """For each axis label (see :mod:`sizes`), the order of the axis entries from most to least important."""
    order = {}
    for i, kind in blocks(arch):
        place = f"layers.{i}.{kind}"
        matrix = weights[f"{place}.{_BACK[kind]}.weight"]
        covariance = _covariance(found, place)
        if kind == "ffn":
            order[f"{place}"] = _falling(covariance.diagonal() * matrix.square().sum(0))
            continue
        block = arch.layers[i].attention
        assert block is not None
        wide = block.query_width // block.kv_heads  # columns of the query heads of one KV head
        parts = [slice(g * wide, (g + 1) * wide) for g in range(block.kv_heads)]
        shares = [torch.trace(matrix[:, part] @ covariance[part, part] @ matrix[:, part].T) for part in parts]
        heads = _falling(torch.stack(shares))
        order[f"layers.{i}.query"] = _spread(heads, wide)
        order[f"layers.{i}.kv"] = _spread(heads, block.head_size)
        order[f"layers.{i}.heads"] = _spread(heads, block.heads // block.kv_heads)
    return order


def reordered(found: Statistics, order: Mapping[str, Index]) -> Statistics:
    """The statistics after a permutation of the model's weights with :func:`sizes.reorder`."""
    inner = {place: torch.from_numpy(order[_label(place)]) for place in found.means}
    return Statistics(
        means={place: value[inner[place]] for place, value in found.means.items()},
        moments={place: value[inner[place]][:, inner[place]] for place, value in found.moments.items()},
        influence=found.influence,
    )


def repaired(arch: ArchSpec, weights: Weights, found: Statistics, sizes: Sizes) -> dict[str, Tensor]:
    """Weights in which smaller blocks approximate the outputs of the full blocks, by least squares on ``found``.

    Only the blocks' output projections change: their first columns, which the pruned model keeps, and their biases.
    """
    changed, whole = dict(weights), whole_sizes(arch)
    for i, kind in blocks(arch):
        place = f"layers.{i}.{kind}"
        size, top = sizes.block(i, kind), whole.block(i, kind)
        if size in (0, top):
            continue
        name = f"{place}.{_BACK[kind]}"
        matrix, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        columns = matrix.shape[1] * size // top
        new, shift = stand_in(matrix, found, place, columns, centred=bias is not None)
        changed[f"{name}.weight"] = torch.cat((new, matrix[:, columns:]), dim=1)
        if bias is not None:
            changed[f"{name}.bias"] = bias + shift
    return changed


def stand_in(matrix: Tensor, found: Statistics, place: str, columns: int, *, centred: bool) -> tuple[Tensor, Tensor]:
    """The matrix (D, columns) that best approximates the outputs of ``matrix`` from its first ``columns`` inputs.

    Also returns the change of the bias, (D).
    """
    second = (_covariance(found, place) if centred else found.moments[place]).double()
    wide, mean = matrix.double(), found.means[place].double()
    kept = second[:columns, :columns]
    ridge = _RIDGE * kept.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    new = torch.linalg.solve(kept + ridge, second[:columns] @ wide.T).T
    shift = wide @ mean - new @ mean[:columns] if centred else torch.zeros(len(wide), dtype=torch.float64)
    return new.float(), shift.float()


def _covariance(found: Statistics, place: str) -> Tensor:
    mean = found.means[place]
    return found.moments[place] - torch.outer(mean, mean)


def _falling(scores: Tensor) -> Index:
    return np.argsort(-scores.double().numpy(), kind="stable").astype(np.int64)


def _spread(groups: Index, wide: int) -> Index:
    """Indices of all entries when groups of ``wide`` entries are put in the order ``groups``."""
    return (groups[:, None] * wide + np.arange(wide)[None]).ravel()


def _label(place: str) -> str:
    return place if place.endswith("ffn") else place.replace("attention", "query")

"""Learned rounding: integers and scales of all matrices together, by descent on the outputs of the whole model.

Starts from another quantiser. In each step the model runs with rounded matrices, and gradients pass straight through
the rounding (Bengio et al. 2013, arXiv:1308.3432) to values in units of a scale, and to the scales (Esser et al. 2020,
LSQ, arXiv:1902.08153). The loss is the divergence from the FP32 model's outputs, so no labels are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import Grid, Packed, Packing, levels, nearest, pack_integers
from chipwise.model.walk.module import load

VALUE_RATE, SCALE_RATE = 0.01, 0.01  # steps of a value in units of its scale, and of a scale as a share
LEAN = 0.45  # how far a value may start from its integer
WARMUP = 0.05  # share of the budget in which the rates rise
Loss = Callable[[nn.Module, int], Tensor]
"""The loss of a model on the batch of this number, differentiable."""


class _Rounded(nn.Module):
    """A matrix (n, k) as integers times scales; ``original`` of the parametrised weight is not used."""

    def __init__(self, matrix: Float32Array, packed: Packed, grid: Grid) -> None:
        super().__init__()
        self.form, self.grid, (self.n, self.k) = packed.form, grid, matrix.shape
        low, high, size = levels(packed.form, grid, self.k)
        groups = -(-self.k // size)
        padded = np.zeros((self.n, groups * size), np.float32)
        padded[:, : self.k] = matrix
        restored = np.zeros_like(padded)
        restored[:, : self.k] = packed.restored()
        scales = packed.scales.reshape(self.n, groups, 1)
        zeros = np.full_like(scales, -low) if packed.zeros is None else packed.zeros[..., None].astype(np.float32)
        integers = np.round(restored.reshape(self.n, groups, size) / scales)
        off = padded.reshape(self.n, groups, size) / scales - integers
        self.values = nn.Parameter(torch.from_numpy(integers + np.clip(off, -LEAN, LEAN)))
        self.scales = nn.Parameter(torch.from_numpy(scales.copy()))
        self.zeros: Tensor
        self.register_buffer("zeros", torch.from_numpy(zeros))
        self.low, self.high = low, high

    def integers(self) -> Tensor:
        """The rounded values (n, groups, g)."""
        least = -self.zeros if self.form == "int4" else torch.full_like(self.zeros, self.low)
        clipped = torch.minimum(torch.maximum(self.values, least), least + (self.high - self.low))
        return clipped + (clipped.round() - clipped).detach()

    def forward(self, _: Tensor) -> Tensor:
        return (self.integers() * self.scales).reshape(self.n, -1)[:, : self.k]

    def packed(self) -> Packed:
        """The matrix as stored."""
        with torch.no_grad():
            values, scales = self.integers().numpy(), self.scales[..., 0].numpy()
        zeros = None if self.grid.symmetric or self.form != "int4" else self.zeros[..., 0].numpy()
        return pack_integers(self.form, values, scales, self.k, zeros)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Result of :func:`learn`."""

    weights: Mapping[str, AnyArray]  # what the model computes with: rounded matrices as restored, others in FP32
    packing: Packing  # packs these weights without a further loss
    steps: int
    cpu_s: float


def learn(
    design: Design,
    weights: Mapping[str, AnyArray],
    packing: Packing,
    loss: Loss,
    *,
    cpu_budget_s: float,
    steps: int | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Learned:
    """Improves what ``packing`` rounds of ``weights`` for ``cpu_budget_s`` or ``steps``.

    A tied head becomes a table of its own, as in exported files.
    """
    arch = design.arch.with_tied(False)
    held = dict(weights)
    if arch.head.writes and "head.weight" not in held:
        held["head.weight"] = held["embedding.weight"]
    model = load(arch, held)
    made: dict[str, _Rounded] = {}
    for name, module in list(model.named_modules()):
        stored = design.format_of(f"{name}.weight") if isinstance(module, nn.Linear) else "fp32"
        if stored != "fp32":
            matrix = np.ascontiguousarray(held[f"{name}.weight"], np.float32)
            packed = packing.pack(f"{name}.weight", matrix, stored)
            made[name] = _Rounded(matrix, packed, packing.grid)
            parametrize.register_parametrization(module, "weight", made[name], unsafe=True)
            module.parametrizations.weight.original.requires_grad_(False)
    optimiser = torch.optim.Adam(
        [
            {"params": [each.values for each in made.values()], "peak": VALUE_RATE},
            *(
                {"params": [each.scales], "peak": SCALE_RATE * float(each.scales.detach().abs().mean())}
                for each in made.values()
            ),
        ],
        betas=(0.9, 0.99),
    )
    begun, step = clock(), 0
    while (done := _done(step, steps, clock() - begun, cpu_budget_s)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * min(done / WARMUP, 1.0, (1 - done) / (1 - WARMUP)) + 1e-12
        optimiser.zero_grad()
        loss(model, step).backward()
        optimiser.step()
        step += 1
    spent = clock() - begun
    return Learned(**_frozen(held, made, packing), steps=step, cpu_s=spent)


def _done(step: int, steps: int | None, spent_s: float, budget_s: float) -> float:
    return spent_s / budget_s if steps is None else step / steps


def _frozen(held: Mapping[str, AnyArray], made: Mapping[str, _Rounded], packing: Packing) -> dict[str, Any]:
    """Weights and packing after the last step. Rows are recognised by their values, wherever a file puts them."""
    found, rows = dict(held), dict[tuple[str, bytes], tuple[Packed, int]]()
    for name, each in made.items():
        packed = each.packed()
        found[f"{name}.weight"] = restored = packed.restored()
        rows |= {(packed.form, row.tobytes()): (packed, i) for i, row in enumerate(restored)}

    def known(matrix: Float32Array, form: str, *, inputs: Callable[[], Float32Array | None], grid: Grid) -> Packed:
        places = [rows.get((form, row.tobytes())) for row in np.ascontiguousarray(matrix)]
        if any(place is None for place in places):
            return nearest(matrix, form, inputs=inputs, grid=grid)
        parts = [place for place in places if place is not None]
        zeros = None if parts[0][0].zeros is None else np.stack([each.zeros[i] for each, i in parts])  # type: ignore
        values, scales = (np.stack([getattr(each, part)[i] for each, i in parts]) for part in ("values", "scales"))
        return Packed(form, values, scales, matrix.shape[1], zeros)

    return {"weights": found, "packing": replace(packing, quantiser=known)}

"""Optimiser that combines Muon for the layers' matrices with AdamW for all other parameters.

Muon replaces a matrix's averaged gradient by the nearest matrix whose singular values are all about one, so that all
directions are learnt at the same pace. Matrices of equal shape are processed together. Steps are scaled to the size of
AdamW's steps, so one learning rate suits all widths.

References:
    Jordan et al. 2024, Muon (https://kellerjordan.github.io/posts/muon); the scale 0.2·√max(rows, columns): Liu et
    al. 2025, arXiv:2502.16982, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chipwise.model.nn.amx import bf16_is_safe
from chipwise.training.loop.adamw import AVERAGES, AdamW

_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes singular values in (0, 1] towards 1 within five rounds


def orthogonalise(matrices: Tensor, *, rounds: int = 5) -> Tensor:
    """Moves all singular values of matrices (count, rows, columns) to about one; in bfloat16 where supported."""
    a, b, c = _QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda or bf16_is_safe() else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Optimiser:
    """Optimises all parameters of a model.

    Args:
        model: The model. Muon updates its layers' matrices, AdamW all other parameters.
        matrix_rate: Muon's learning rate, if ``scale`` is 1.
        table_rate: AdamW's learning rate, if ``scale`` is 1.
        weight_decay: Weight decay of the layers' matrices.
        table_decay: Weight decay of all other matrices, such as the token table and the head. Vectors have no weight
            decay.
        rounds: Iterations of orthogonalisation; each costs three matrix products.
        momentum: Momentum of the layers' matrices; other parameters use 0.1 less.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        matrix_rate: float,
        table_rate: float,
        weight_decay: float,
        table_decay: float = 0.0,
        rounds: int = 3,
        momentum: float = 0.8,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = [(name, p) for name, p in named if p.ndim == 2 and name.startswith("layers.")]
        chosen = {name for name, _ in matrices}
        self._rest = [(name, p) for name, p in named if name not in chosen]
        self._matrix_rate, self._table_rate = matrix_rate, table_rate
        self._weight_decay, self._rounds, self._momentum = weight_decay, rounds, momentum
        self._shapes: dict[tuple[int, ...], list[tuple[str, nn.Parameter]]] = {}
        for name, p in matrices:
            self._shapes.setdefault(tuple(p.shape), []).append((name, p))
        self._averages = {
            shape: torch.zeros(len(group), *shape, device=group[0][1].device) for shape, group in self._shapes.items()
        }
        self._table_decay = table_decay
        fused = not any(_is_divided(p) for _, p in self._rest)
        self._adam = AdamW(betas=(momentum - 0.1, 0.95), eps=1e-10, fused=fused)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Takes one step, with learning rates multiplied by ``scale``."""
        for decay, several in ((self._table_decay, True), (0.0, False)):
            some = [(name, p) for name, p in self._rest if (p.ndim > 1) is several]
            self._adam.step(some, lr=self._table_rate * scale, weight_decay=decay)
        rate = self._matrix_rate * scale
        for shape, group in self._shapes.items():
            grads = torch.stack([gathered(p.grad if p.grad is not None else torch.zeros_like(p)) for _, p in group])
            average = self._averages[shape].lerp_(grads, 1 - self._momentum)
            update = orthogonalise(grads.lerp_(average, self._momentum), rounds=self._rounds)
            update.mul_(rate * 0.2 * max(shape) ** 0.5)
            parameters: list[Tensor] = [p for _, p in group]
            torch._foreach_mul_(parameters, 1 - rate * self._weight_decay)
            torch._foreach_sub_(parameters, [shard_of(whole, p) for whole, p in zip(update, parameters, strict=True)])

    def state(self) -> dict[str, Tensor]:
        """All running averages, named after their parameters."""
        kept: dict[str, Tensor] = {}
        for shape, group in self._shapes.items():
            for (name, _), average in zip(group, self._averages[shape], strict=True):
                kept[f"muon.{name}"] = average.clone()
        for name, averages in self._adam.averages.items():
            for key, value in averages.items():
                kept[f"adam.{key}.{name}"] = gathered(value).clone()
        return kept

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores the output of :meth:`state`."""
        for shape, group in self._shapes.items():
            for row, (name, _) in enumerate(group):
                self._averages[shape][row].copy_(state[f"muon.{name}"])
        for name, p in self._rest:
            if f"adam.step.{name}" in state:
                step, *averages = (state[f"adam.{key}.{name}"].clone() for key in AVERAGES)
                self._adam.put(name, p, [step, *(shard_of(value.to(p.device), p).clone() for value in averages)])


def gathered(value: Tensor) -> Tensor:
    """Gathers a sharded tensor on every process."""
    return value.full_tensor() if _is_divided(value) else value  # type: ignore[attr-defined]


def shard_of(whole: Tensor, like: Tensor) -> Tensor:
    """This process's shard of ``whole``, sharded as ``like`` is."""
    if not _is_divided(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements)  # type: ignore[attr-defined]


def _is_divided(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")  # detects a DTensor, whose class is missing in some builds of torch

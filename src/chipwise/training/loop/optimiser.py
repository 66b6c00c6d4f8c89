"""Muon for the matrices of the layers and AdamW for tables and vectors, as one optimiser with a plain state.

Muon replaces a matrix's averaged gradient by the nearest matrix with all singular values about one, so that every
direction is learnt at the same pace; matrices of equal shape are processed together. Each matrix's step is scaled to
the size of AdamW's steps, so one learning rate suits all widths.

References:
    Jordan et al. 2024, Muon (https://kellerjordan.github.io/posts/muon); the scale 0.2·√max(rows, columns): Liu et
    al. 2025, arXiv:2502.16982, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chipwise.model.nn.amx import bf16_is_safe

_QUINTIC = (3.4445, -4.7750, 2.0315)  # pushes singular values in (0, 1] towards 1 within five rounds


def orthogonalise(matrices: Tensor, *, rounds: int = 5) -> Tensor:
    """The matrices (count, rows, columns) with all singular values moved to about one, in bfloat16 where supported."""
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
        matrix_rate: Muon's learning rate at scale 1.
        table_rate: AdamW's learning rate at scale 1.
        weight_decay: Weight decay of the layers' matrices.
        table_decay: Weight decay of all other matrices, such as the token table and the head; vectors have none.
        rounds: Iterations of orthogonalisation; each costs three matrix products.
        momentum: Momentum of the matrices; other parameters use 0.1 less.
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
        tables, vectors = ([p for _, p in self._rest if (p.ndim > 1) is several] for several in (True, False))
        groups: list[dict[str, object]] = [{"params": tables, "weight_decay": table_decay}, {"params": vectors}]
        self._adam = torch.optim.AdamW(
            groups,
            lr=table_rate,
            betas=(momentum - 0.1, 0.95),
            eps=1e-10,
            weight_decay=0.0,
            fused=not any(_is_divided(p) for _, p in self._rest),
        )

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Takes one step at ``scale`` times the learning rates."""
        for options in self._adam.param_groups:
            options["lr"] = self._table_rate * scale
        self._adam.step()
        rate = self._matrix_rate * scale
        for shape, group in self._shapes.items():
            grads = torch.stack([_whole(p.grad if p.grad is not None else torch.zeros_like(p)) for _, p in group])
            average = self._averages[shape].lerp_(grads, 1 - self._momentum)
            update = orthogonalise(grads.lerp_(average, self._momentum), rounds=self._rounds)
            update.mul_(rate * 0.2 * max(shape) ** 0.5)
            parameters: list[Tensor] = [p for _, p in group]
            torch._foreach_mul_(parameters, 1 - rate * self._weight_decay)
            torch._foreach_sub_(parameters, [_part(whole, p) for whole, p in zip(update, parameters, strict=True)])

    def state(self) -> dict[str, Tensor]:
        """All running averages by the names of their parameters."""
        kept: dict[str, Tensor] = {}
        for shape, group in self._shapes.items():
            for (name, _), average in zip(group, self._averages[shape], strict=True):
                kept[f"muon.{name}"] = average.clone()
        for name, p in self._rest:
            for key, value in self._adam.state.get(p, {}).items():
                kept[f"adam.{key}.{name}"] = _whole(value).clone()
        return kept

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores the output of :meth:`state`."""
        for shape, group in self._shapes.items():
            for row, (name, _) in enumerate(group):
                self._averages[shape][row].copy_(state[f"muon.{name}"])
        for name, p in self._rest:
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"adam.{key}.{name}" in state]
            self._adam.state[p] = {
                key: (_part(value, p) if value.ndim else value).clone()
                for key in keys
                for value in [state[f"adam.{key}.{name}"].to(p.device)]
            }


def _whole(value: Tensor) -> Tensor:
    """A sharded tensor gathered on every process."""
    return value.full_tensor() if _is_divided(value) else value  # type: ignore[attr-defined]


def _part(whole: Tensor, like: Tensor) -> Tensor:
    """This process's shard of ``whole``, sharded as ``like`` is."""
    if not _is_divided(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements)  # type: ignore[attr-defined]


def _is_divided(value: Tensor) -> bool:
    return hasattr(value, "full_tensor")  # detects a DTensor, whose class is missing in some builds of torch

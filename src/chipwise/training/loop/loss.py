"""Output head and cross entropy combined, a few hundred positions at a time, so that the logits stay in the cache.

In a small model the logits (positions × vocabulary) are far larger than all other activations. Computing their gradient
in the forward pass, block by block, reads them once instead of five times. Axes: R rows (positions), D width, V
vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK_LOGITS = 2**20  # logits computed at a time


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_RD: Tensor, table_VD: Tensor, target_R: Tensor, teacher_RV: Tensor | None, share: float
    ) -> Tensor:
        rows, vocabulary = x_RD.shape[0], table_VD.shape[0]
        table = table_VD.to(x_RD.dtype)
        total = torch.zeros((), dtype=torch.float32, device=x_RD.device)
        grad_x = torch.empty_like(x_RD)
        grad_table = torch.zeros(table_VD.shape, dtype=torch.float32, device=x_RD.device)
        step = max(64, _BLOCK_LOGITS // vocabulary)
        for start in range(0, rows, step):
            x, target = x_RD[start : start + step], target_R[start : start + step, None]
            grad = torch.softmax(torch.mm(x, table.t()), dim=-1)
            total -= grad.gather(1, target).float().clamp_min_(1e-30).log_().sum()
            if teacher_RV is not None:
                grad.sub_(teacher_RV[start : start + step], alpha=share)
            grad.scatter_add_(1, target, torch.full_like(target, share - 1, dtype=grad.dtype))  # minus one-hot
            grad_x[start : start + step] = torch.mm(grad, table)
            grad_table += torch.mm(grad.t(), x)
        ctx.save_for_backward(grad_x.div_(rows), grad_table.div_(rows))
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_x, grad_table = ctx.saved_tensors
        return grad_x * grads[0].to(grad_x.dtype), grad_table * grads[0], None, None, None


def head_loss(
    x_RD: Tensor, table_VD: Tensor, target_R: Tensor, *, teacher_RV: Tensor | None = None, share: float = 0.0
) -> Tensor:
    """Mean cross entropy in nats of ``target_R`` under the logits ``x · tableᵀ``; matrix products run in x's dtype.

    If the teacher's probabilities are given, the gradient is that of ``share`` times the cross entropy against them
    plus ``1 - share`` times the cross entropy against the tokens. The returned value is always the cross entropy
    against the tokens, which measures the model's quality.
    """
    share = 0.0 if teacher_RV is None else share
    return _HeadLoss.apply(x_RD, table_VD, target_R, teacher_RV, share)  # type: ignore[no-any-return, no-untyped-call]


def head_probabilities(x_RD: Tensor, table_VD: Tensor) -> Tensor:
    """The model's probabilities of the next token at every position, (R, V), in x's dtype."""
    with torch.no_grad():
        table = table_VD.to(x_RD.dtype)
        step = max(64, _BLOCK_LOGITS // table.shape[0])
        blocks = (x_RD[start : start + step] for start in range(0, x_RD.shape[0], step))
        return torch.cat([torch.softmax(torch.mm(x, table.t()), dim=-1) for x in blocks])

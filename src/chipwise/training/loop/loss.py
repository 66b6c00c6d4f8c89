"""Computes output head and cross entropy together, for a few hundred positions at a time, so that logits stay in cache.

In a small model the logits (positions × vocabulary) are far larger than all other activations. Computing their gradient
block by block in the forward pass reads the logits once instead of five times. Axes: R rows (positions), D width, V
vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK_LOGITS = 2**20  # logits computed at a time


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, table_VD: Tensor, target_R: Tensor) -> Tensor:
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
            grad.scatter_add_(1, target, torch.full_like(target, -1, dtype=grad.dtype))  # minus one-hot
            grad_x[start : start + step] = torch.mm(grad, table)
            grad_table += torch.mm(grad.t(), x)
        ctx.save_for_backward(grad_x.div_(rows), grad_table.div_(rows))
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_table = ctx.saved_tensors
        return grad_x * grads[0].to(grad_x.dtype), grad_table * grads[0], None


def head_loss(x_RD: Tensor, table_VD: Tensor, target_R: Tensor) -> Tensor:
    """Mean cross entropy in nats of ``target_R`` under the logits ``x · tableᵀ``; matrix products run in x's dtype."""
    return _HeadLoss.apply(x_RD, table_VD, target_R)  # type: ignore[no-any-return, no-untyped-call]

"""Learning from a larger sub-model of the same step: its word for every next token beside the token itself.

Blocks of positions at a time, as in ``nn/loss.py``. Axes: R rows (positions), D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK_LOGITS = 2**20  # logits kept at a time


class _Distilled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, table_VD: Tensor, target_R: Tensor, teacher_RV: Tensor, share: float) -> Tensor:
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
            grad.sub_(teacher_RV[start : start + step], alpha=share)
            grad.scatter_add_(1, target, torch.full_like(target, share - 1, dtype=grad.dtype))
            grad_x[start : start + step] = torch.mm(grad, table)
            grad_table += torch.mm(grad.t(), x)
        ctx.save_for_backward(grad_x.div_(rows), grad_table.div_(rows))
        return total / rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_x, grad_table = ctx.saved_tensors
        return grad_x * grads[0].to(grad_x.dtype), grad_table * grads[0], None, None, None


def distilled_loss(x_RD: Tensor, table_VD: Tensor, target_R: Tensor, teacher_RV: Tensor, *, share: float) -> Tensor:
    """The mean cross entropy in nats of ``target_R``, whose gradient is that of a mixture.

    The gradient is of ``share`` times the cross entropy against the teacher's probabilities and the rest against the
    tokens themselves, so the value says how good the model is and not how far it is from the teacher.
    """
    return _Distilled.apply(x_RD, table_VD, target_R, teacher_RV, share)  # type: ignore[no-any-return, no-untyped-call]


def probabilities(x_RD: Tensor, table_VD: Tensor) -> Tensor:
    """The model's word for the next token at every position, (R, V), in x's format."""
    with torch.no_grad():
        table = table_VD.to(x_RD.dtype)
        step = max(64, _BLOCK_LOGITS // table.shape[0])
        blocks = (x_RD[start : start + step] for start in range(0, x_RD.shape[0], step))
        return torch.cat([torch.softmax(torch.mm(x, table.t()), dim=-1) for x in blocks])

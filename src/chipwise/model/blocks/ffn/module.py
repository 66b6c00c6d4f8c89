"""Feed-forward in torch. Axes: B batch, T tokens, D model width."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.nn.precision import compute_format

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


class GroupedLinear(nn.ModuleList):
    """A block-diagonal matrix: the channels form equal groups, each of which has its own matrix."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The outputs of all groups, concatenated in order."""
        parts = x_BTD.chunk(len(self), dim=-1)
        return torch.cat([one(part) for one, part in zip(self, parts, strict=True)], dim=-1)


def make_linear(width: int, outputs: int, block: FeedForward) -> nn.Module:
    """The dense or grouped matrix that ``block`` needs."""
    sizes = width // block.groups, outputs // block.groups
    parts = [nn.Linear(*sizes, bias=block.bias) for _ in range(block.groups)]
    return parts[0] if block.groups == 1 else GroupedLinear(parts)


class FeedForwardModule(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: FeedForward, d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block.activation]
        self.gate = make_linear(d_model, block.width, block) if block.gated else None
        self.up = make_linear(d_model, block.width, block)
        self.down = make_linear(block.width, d_model, block)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        x_BTD = compute_format(x_BTD)
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))  # type: ignore[no-any-return]
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))  # type: ignore[no-any-return]

"""Feed-forward in torch. Axes: B batch, T tokens, D model width."""

from __future__ import annotations

from collections.abc import Callable

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


class FeedForwardModule(nn.Module):
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when gated."""

    def __init__(self, block: FeedForward, d_model: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[block.activation]
        self.gate = nn.Linear(d_model, block.width, bias=block.bias) if block.gated else None
        self.up = nn.Linear(d_model, block.width, bias=block.bias)
        self.down = nn.Linear(block.width, d_model, bias=block.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The block's output, without the residual."""
        x_BTD = compute_format(x_BTD)
        if self.gate is None:
            return self.down(self.activation(self.up(x_BTD)))  # type: ignore[no-any-return]
        return self.down(self.activation(self.gate(x_BTD)) * self.up(x_BTD))  # type: ignore[no-any-return]

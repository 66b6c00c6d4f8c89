"""AdamW, computed by the function ``torch.optim.adamw.adamw``.

The class ``torch.optim.AdamW`` would import ``torch._dynamo``, which takes four seconds in each process.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

AVERAGES = ("step", "exp_avg", "exp_avg_sq")  # a parameter's number of steps and running averages, in torch's words


class AdamW:
    """AdamW (with a weight decay of 0: Adam). It stores running averages by the names of parameters.

    ``torch.optim.AdamW`` computes the same, but it imports ``torch._dynamo``.

    Args:
        betas: Decay rates of the averages of gradients and of their squares.
        eps: Added to the root of the average square.
        fused: Whether one kernel updates all parameters. This kernel does not support sharded parameters.
    """

    def __init__(self, *, betas: tuple[float, float], eps: float = 1e-8, fused: bool = False) -> None:
        self._betas, self._eps, self._fused = betas, eps, fused
        self.averages: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, named: Sequence[tuple[str, nn.Parameter]], *, lr: float, weight_decay: float = 0.0) -> None:
        """Updates those of the named parameters that have a gradient."""
        some = [(name, p) for name, p in named if p.grad is not None]
        for name, p in some:
            if name not in self.averages:
                self.put(name, p, [torch.zeros(()), torch.zeros_like(p), torch.zeros_like(p)])
        steps, means, squares = ([self.averages[name][key] for name, _ in some] for key in AVERAGES)
        adamw(
            [p for _, p in some],
            [p.grad for _, p in some if p.grad is not None],
            means,
            squares,
            [],
            steps,
            fused=self._fused,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=lr,
            weight_decay=weight_decay,
            eps=self._eps,
            maximize=False,
        )

    def put(self, name: str, p: nn.Parameter, values: Sequence[Tensor]) -> None:
        """Stores the optimiser state of a parameter: ``values`` has one tensor for each name in ``AVERAGES``.

        The tensor ``step`` is moved to the device where the update reads it.
        """
        step, *others = values
        self.averages[name] = dict(zip(AVERAGES, [step.to(p.device if self._fused else "cpu"), *others], strict=True))

"""Initial values of a module's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch

Module = TypeVar("Module", bound=torch.nn.Module)


def fill(module: Module, *, seed: int, deviation: Callable[[str], float | None]) -> Module:
    """Initialises the parameters: biases 0, norms 1, matrices normal with standard deviation 1/√fan-in.

    The output matrices of attention and feed-forwards are also scaled by 1/√(2·depth).

    Args:
        module: The module to fill, with its architecture as ``arch``.
        seed: Seed of the normal values, which are drawn in the order of the parameters.
        deviation: Given a parameter's name, returns its standard deviation; None for the default above, 0 for zeros.

    References:
        Residual scaling by 1/√(2·depth): Radford et al. 2019 (GPT-2), section 2.3.
    """
    generator, depth = torch.Generator().manual_seed(seed), len(module.arch.layers)  # type: ignore[union-attr, arg-type]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            own = 0.0 if name.endswith("bias") else deviation(name)
            if own == 0.0:
                parameter.zero_()
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            elif own is not None:
                parameter.normal_(0.0, own, generator=generator)
            else:
                scale = 1 / math.sqrt(parameter[0].numel())
                if name.endswith(("out.weight", "down.weight")):
                    scale /= math.sqrt(2 * depth)
                parameter.normal_(0.0, scale, generator=generator)
    return module

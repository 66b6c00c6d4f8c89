"""The format that autocast multiplies in, entered once per block instead of once per matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_format(x: Tensor) -> Tensor:
    """``x`` in the format that autocast would give every matrix product with it; ``x`` itself without autocast."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

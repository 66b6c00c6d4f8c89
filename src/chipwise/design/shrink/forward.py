"""Forward passes of pruned models with given weights, and distances between their outputs and the original's.

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
MOST_LOGITS = 2**25  # per batch; in a small decoder, the head of a large vocabulary would take most of the time


class _States(nn.Module):
    """Module that returns the hidden states before the head; for a model with a stem, the head's outputs."""

    def __init__(self, arch: ArchSpec) -> None:
        super().__init__()
        self.model: nn.Module = module_of(arch)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Computes the outputs; a decoder ignores the mask, because padding is at the end."""
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
    """Hidden states (B, T, D) before the head or pooling; for a model with a stem, the outputs of the head."""
    named = {f"model.{name}": value for name, value in weights.items()}
    found: Tensor = functional_call(_module(arch), named, inputs)
    return found


class Bound:
    """Runs a model that has a stem, with given weights, and records its outputs; data sets call it like a model.

    Attributes:
        arch: The model's architecture.
        given: The outputs of all calls, in order.
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
    """Context in which the functions in ``watch`` are called with the inputs and outputs of the modules they name."""
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
    """Distance of a pruned encoder from the original on a batch; 0 if they agree.

    The distance is a weighted sum of three terms: the mean squared error of hidden states relative to the original's
    variance; one minus the cosine between both models' embeddings of a text; and the squared error of cosine
    similarities between texts of the batch. A narrower model is compared with the first (most important) entries of the
    original's states.

    Args:
        found_BTD: Hidden states of the pruned model.
        target_BTD: Hidden states of the original.
        mask_BT: True for text, false for padding.
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
    """Log probabilities (N, V) of a decoder's next token."""
    return F.log_softmax(F.linear(states_ND.float(), head_VD.float()), dim=-1)


def divergence(found_NV: Tensor, wanted_NV: Tensor) -> Tensor:
    """Mean of KL(wanted || found) in nats; both distributions are given as log probabilities."""
    return F.kl_div(found_NV, wanted_NV, log_target=True, reduction="batchmean")


def thinned(mask_BT: Tensor, vocabulary: int) -> Tensor:
    """``mask_BT`` with only some of its positions, evenly spaced.

    The number of positions is limited so that they have at most ``MOST_LOGITS`` logits in total.
    """
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

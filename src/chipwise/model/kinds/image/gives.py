"""The output of a pretrained image encoder, and the layers that this output needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes, Pooler
from chipwise.model.kinds.question.projector.spec import Projector

Gives = Literal["states", "vector", "logits", "tokens"]


def gives(arch: ArchSpec) -> Gives:
    """The kind of output for an image: ``states`` of all positions, a ``vector``, ``logits``, or decoder ``tokens``."""
    if arch.head.token_width:
        return "tokens"
    if isinstance(arch.head, Classes):
        return "logits"
    pooled = isinstance(arch.head, Pooler) or arch.head.pooling == "attention" or arch.head.projection > 0
    return "vector" if pooled else "states"


def as_run(arch: ArchSpec) -> ArchSpec:
    """``arch`` without its last layers if the projector does not use them, and then also without the final norm."""
    if gives(arch) != "tokens" or not (projector := arch.head_as(Projector)).unused_layers:
        return arch
    kept = arch.layers[: len(arch.layers) - projector.unused_layers]
    return replace(arch, layers=kept, final_norm=False, head=replace(projector, unused_layers=0))

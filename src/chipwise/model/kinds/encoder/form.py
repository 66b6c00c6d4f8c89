"""BERT-style text encoders that chipwise builds and exports itself.

They have a norm after each residual sum, learned positions, bidirectional attention, and a pooler or no head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.ends import Pooler, States, Tokens
from chipwise.model.kinds.encoder import weights
from chipwise.model.kinds.form import Form, Modelling, random_tokens

_FREE = {"norm_place", "embedding_norm", "head", "token_types", "final_norm", "causal"}  # later fields of encoders


def without_head(arch: ArchSpec) -> ArchSpec:
    """``arch`` without its pooler, because mean-pooled embeddings do not need one."""
    return replace(arch, head=States())


def _departures(arch: ArchSpec) -> Iterator[str]:
    if arch.norm_place != "post" or not isinstance(arch.head, Pooler | States):
        yield "it is not an encoder with norms after its blocks"
    yield from unbuilt(arch, free=_FREE)
    if arch.final_norm:
        yield "final_norm = True is not supported in models with norms after the blocks"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not supported in encoders"
    yield from in_layers(arch.layers, lambda layer: encoding_departures(layer, free=_FREE, where="in encoders"))


ENCODER = Form(
    name="encoder",
    stem=Tokens,
    only=lambda arch: next(_departures(arch), None) is None,  # variants that are not supported count as decoders
    departures=_departures,
    does=lambda arch: "encodes text",
    weights=(weights.stem, weights.head),
    package="encoder",
    modelling=lambda arch: Modelling("modeling_chipwise_encoder.py", "AutoModel", "ChipwiseEncoder"),
    folders="encoder.hf",
    inputs=random_tokens,
    outputs="states",
    gives="mean",
    shrinks=True,
    untrained="chipwise does not train text encoders from scratch; it can only export, measure and shrink them",
)

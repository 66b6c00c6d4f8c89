"""Text decoders that chipwise builds, trains and exports itself. For other decoders it only predicts costs.

Such a model has grouped-query attention, a feed-forward or both in each layer, and a head over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import block_departures, in_layers, unbuilt
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import Form, Modelling, random_tokens
from chipwise.model.kinds.text import lower, weights

_FREE = {"attention_conv", "ffn_conv", "norm_place", "groups"}  # ``later`` fields that are built


def _departures(arch: ArchSpec) -> Iterator[str]:
    after = arch.norm_place == "post"
    yield from unbuilt(arch, free=_FREE | {"final_norm"} if after else _FREE)
    if after and arch.final_norm:
        yield "norm_place = 'post' with a final norm (OLMo 2) is not supported"

    def in_layer(layer: Layer) -> Iterator[str]:
        yield from block_departures(layer, free=_FREE)
        if isinstance(layer.attention, Attention) and layer.attention.rope != (arch.positions == "rope"):
            yield "layers without rotary positions are not supported if other layers have them"

    yield from in_layers(arch.layers, in_layer)


DECODER = Form(
    name="decoder",
    stem=Tokens,
    departures=_departures,
    does=lambda arch: "reads text",
    weights=(weights.stem, weights.head),
    package="text",
    modelling=lambda arch: Modelling("modeling_chipwise.py", "AutoModelForCausalLM", "ChipwiseForCausalLM"),
    folders="text.hf",
    inputs=random_tokens,
    operators=lower.OPERATORS,
    task=lambda arch: "text",
    shrinks=True,
)
